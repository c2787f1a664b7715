// Attention plots as Chromium draws them: XML, on the page, every label inside the picture and upright or climbing.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { plotAttention } from '../../dist/node.js';
import { launchChromium, openPage } from '../../scripts/chromium.mjs';

let browser;
before(async () => {
  browser = await launchChromium();
});
after(() => browser?.close());

const tokens = ['Hello', ',', '你好', 'مرحبا', 'नमस्ते', '👩‍👩‍👧', 'e\u0301', ' the', '\n', '\u202e', '<b>&"', '▁Transformer', 'MISSISSIPPI'];
const pictures = {
  'many scripts': [tokens.map(() => tokens.map((_, i) => i / tokens.length)), tokens, tokens, { title: 'Many scripts' }],
  'short labels': [[[0.1, 0.9]], ['我', '们'], ['wǒ'], {}],
  'one cell': [[[1]], ['a long source'], ['b'], { title: 'A title that is wider than the matrix' }],
  heads: [{ data: new Float32Array(60), shape: [5, 3, 4] }, ['a', 'bb', 'ccc', 'dddd'], ['e', 'f', 'g'], { cell: 12 }],
};

for (const [name, args] of Object.entries(pictures)) {
  test(name, async () => {
    const { context, page, problems } = await openPage(browser);
    try {
      await page.setContent('<!doctype html><body style="direction: rtl; color: rgb(1, 2, 3)"><main></main></body>');
      const found = await page.evaluate(
        (text) => {
          const xml = new DOMParser().parseFromString(text, 'image/svg+xml');
          const main = document.querySelector('main');
          main.innerHTML = text;
          const svg = main.firstElementChild;
          const frame = svg.getBoundingClientRect();
          const labels = [...svg.querySelectorAll('text')].map((label) => {
            const { left, top, right, bottom } = label.getBoundingClientRect();
            return {
              text: label.textContent,
              outside: Math.max(frame.left - left, frame.top - top, right - frame.right, bottom - frame.bottom),
            };
          });
          const end = svg.querySelector('text[text-anchor=end]');
          return {
            wellFormed: xml.documentElement.nodeName === 'svg' && !xml.querySelector('parsererror'),
            name: svg.nodeName,
            children: main.children.length,
            labels,
            fill: getComputedStyle(svg.querySelector('text')).fill,
            endsAt: end.getBoundingClientRect().right,
            cellsAt: svg.querySelector('g').getBoundingClientRect().left,
          };
        },
        plotAttention(...args),
      );
      assert.ok(found.wellFormed);
      assert.deepEqual([found.name, found.children], ['svg', 1]);
      assert.equal(found.fill, 'rgb(1, 2, 3)');
      // Beside the matrix in a page that runs from right to left, too.
      assert.ok(found.endsAt <= found.cellsAt + 1, `${found.endsAt} ${found.cellsAt}`);
      for (const { text, outside } of found.labels) assert.ok(outside <= 1, `${text}: ${outside} pixels outside`);
      assert.deepEqual(problems, []);
    } finally {
      await context.close();
    }
  });
}
