// The page: tabs to write, to translate and to train in, and the colours.
import { showRow } from './attention.ts';
import { showModelOf, startModels } from './models.ts';
import { skipLink } from './page.ts';
import { startTabs } from './tabs.ts';
import { startTheme } from './theme.ts';
import { showTraining, startTraining } from './train.ts';
import { startTranslating } from './translate.ts';
import { startWriting } from './write.ts';

startTheme(() => showRow(false));
startModels({ write: startWriting(), translate: startTranslating(), train: startTraining() });
const fields: Record<string, string> = { write: 'prompt', translate: 'source-text', train: 'start-training' };
startTabs((tab) => {
  skipLink().href = `#${fields[tab]}`;
  showModelOf(tab);
  if (tab === 'train') showTraining();
});
