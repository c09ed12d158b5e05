// OpenAI's client for Node: what a server at ADDRESS answers. node -e PROGRAM ADDRESS TOKEN TEXT
const OpenAI = require('openai');
const [address, token, text] = process.argv.slice(1);
const client = new OpenAI({baseURL: address + '/v1', apiKey: token, maxRetries: 0});
const request = {model: 'heart', voice: 'default', input: text, response_format: 'wav'};
(async () => {
  const response = await client.audio.speech.create(request);
  let pieces = 0, bytes = 0, events = '';
  for await (const piece of response.body) { pieces += 1; bytes += piece.length; }
  const streamed = await client.audio.speech.create({...request, stream_format: 'sse'});
  for await (const piece of streamed.body) events += Buffer.from(piece).toString();
  const deltas = events.split('\n\n').filter(Boolean).map((event) => JSON.parse(event.slice('data: '.length)));
  const events_bytes = deltas.filter(({type}) => type === 'speech.audio.delta')
    .reduce((sum, {audio}) => sum + Buffer.from(audio, 'base64').length, 0);
  const models = [];
  for await (const model of client.models.list()) models.push(model.id);
  const error = await client.audio.speech.create({...request, model: 'other'}).catch((error) => error);
  console.log(JSON.stringify({pieces, bytes, events_bytes, models, status: response.status,
                              error: [error.constructor.name, error.status]}));
})();
