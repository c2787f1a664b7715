// The page: a tab to write in, a tab to translate in, and the colours.
import { showRow } from './attention.ts';
import { showModelOf, startModels } from './models.ts';
import { skipLink } from './page.ts';
import { startTabs } from './tabs.ts';
import { startTheme } from './theme.ts';
import { startTranslating } from './translate.ts';
import { startWriting } from './write.ts';

startTheme(() => showRow(false));
startModels({ write: startWriting(), translate: startTranslating() });
startTabs((tab) => {
  skipLink().href = tab === 'write' ? '#prompt' : '#source-text';
  showModelOf(tab);
});
