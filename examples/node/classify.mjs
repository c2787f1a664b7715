// Labels texts, or the names in them, whichever the model has learned: node examples/node/classify.mjs [text] [model]
// With dslim/bert-base-NER, for instance, it finds persons, places and organisations.
import { load } from 'wasmformer';

if (/^(-h|--help)$/.test(process.argv[2])) {
  console.log('Usage: node examples/node/classify.mjs [text] [model]');
  process.exit();
}

const [text = 'I love this film.', model = 'distilbert/distilbert-base-uncased-finetuned-sst-2-english'] = process.argv.slice(2);

const classifier = await load(model);
// Of models that label words: joined to names.
const labels = await classifier.classify(text, classifier.info().head === 'token' ? { aggregation: 'simple' } : {});
for (const { label, score, text: name, offsets } of labels) {
  const place = offsets ? `  ${name} (${offsets.join(' to ')})` : '';
  console.log(`${(100 * score).toFixed(1).padStart(5)} %  ${label}${place}`);
}
if (labels.length === 0) console.log('nothing found');
await classifier.dispose();
