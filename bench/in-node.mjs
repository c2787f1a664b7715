// A contender in a process of its own: does what the parent's messages say.
let contender;

process.on('message', async ({ method, args }) => {
  try {
    let value;
    if (method === 'open') {
      const [{ file, ...spec }] = args;
      const start = performance.now();
      const { open } = await import(`./peers/${file}.mjs`);
      contender = await open(spec);
      value = performance.now() - start;
    } else {
      value = await contender[method](...args);
    }
    process.send({ value });
  } catch (error) {
    process.send({ error: String(error?.stack ?? error) });
  }
});
