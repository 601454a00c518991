// Lighthouse's scores of pages, in one browser, at its default settings where performance is measured: node lighthouse.mjs CHROMIUM CATEGORY,CATEGORY URL…
import { launch } from "chrome-launcher";
import lighthouse from "lighthouse";

const [chromePath, categories, ...urls] = process.argv.slice(2);
const chrome = await launch({ chromePath, chromeFlags: ["--headless=new", "--no-sandbox"] });
const scores = {};
for (const url of urls) {
  const options = { port: chrome.port, onlyCategories: categories.split(","), logLevel: "error" };
  // Only the time that a page takes depends on these.
  if (!categories.includes("performance")) {
    Object.assign(options, { throttlingMethod: "provided", disableFullPageScreenshot: true });
  }
  const { lhr } = await lighthouse(url, options);
  scores[url] = Object.fromEntries(
    Object.entries(lhr.categories).map(([name, category]) => [name, Math.round(category.score * 100)]),
  );
}
console.log(JSON.stringify(scores));
await chrome.kill();
