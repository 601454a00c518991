// What the pages do beyond being read. All HTML comes from the server's templates; text is set as text.
import "./live_run.js";
import "./live_part.js";
import "./edited_field.js";
import "./sub_run.js";
import { showLocalTimes } from "./page_parts.js";

showLocalTimes(document);
