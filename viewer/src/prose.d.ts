// The texts of docs/, as prose.ts gives them.
declare module "*/guide.md" {
  const guide: import("../prose").Guide;
  export default guide;
}
declare module "*/questions.md" {
  const questions: import("../prose").Questions;
  export default questions;
}
