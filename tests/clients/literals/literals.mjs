// Prints how JavaScript writes times: kind, milliseconds, expression, text.
const print = (kind, ms, expression, text) => console.log([kind, ms, expression, text].join("\t"));

for (const ms of [1796071380000, 1796071385000, 1796071385500]) {
  const at = new Date(ms);
  print("time", ms, "Date.toISOString", at.toISOString());
  print("time", ms, "JSON.stringify(Date)", JSON.parse(JSON.stringify(at)));
  print("time", ms, "String(Date.getTime)", String(at.getTime()));
  print("refused", 0, "Date.toString", at.toString());
  print("refused", 0, "Date.toUTCString", at.toUTCString());
  print("refused", 0, "Date.toLocaleString", at.toLocaleString("en-US"));
}
