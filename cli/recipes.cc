#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "cli/commands.h"

namespace bdn {

// Returns the text of python/bandoneon/recipes.json, which CMake builds into this program.
std::string_view RecipesText();

namespace cli {
namespace {

constexpr Flag kFlags[] = {{"json", 0, nullptr, "print the table as JSON"}};

constexpr char kUsageText[] =
    "usage: bandoneon recipes [options]\n"
    "\n"
    "Lists the recipes of bandoneon.torch.recipe(NAME): what they are for, what they are made of, "
    "about\n"
    "how many times fewer bytes they move, their limits, and the rows of "
    "docs/journal/convergence.md that they rest on.\n";

constexpr char kExamples[] =
    "  bandoneon recipes\n"
    "  bandoneon recipes --json\n";

using Json = nlohmann::ordered_json;

// Returns the composition on one line, as its repr in Python has it.
std::string Composition(const Json& recipe) {
  const auto text = [&recipe](const char* name) { return recipe.at(name).get<std::string>(); };
  std::string how =
      text("strategy") + " around " + (text("inner") == "yours" ? "your optimizer" : text("inner"));
  if (recipe.contains("tau")) how += ", tau=" + recipe["tau"].dump() + ", averaging";
  if (recipe.contains("momentum")) how += ", momentum=" + recipe["momentum"].dump();
  return how + "; push " + text("push") + ", pull " + text("pull");
}

std::string Evidence(const Json& recipe) {
  std::string rows;
  for (const Json& row : recipe.at("evidence")) {
    rows += (rows.empty() ? "" : "; ") + row.get<std::string>();
  }
  return rows;
}

}  // namespace

int RecipesCommand(Arguments args) {
  if (PrintedHelp(args, kUsageText, kFlags, kExamples)) return 0;
  const auto flags = CommandFlags::Parse(kFlags, args);
  if (!flags.ok()) return UsageError("recipes", flags.status());
  if (flags->Has("json")) {
    fwrite(RecipesText().data(), 1, RecipesText().size(), stdout);
    return 0;
  }
  for (const Json& recipe : Json::parse(RecipesText())) {
    printf("%s: about %s times fewer bytes\n", recipe.at("name").get<std::string>().c_str(),
           recipe.at("ratio").dump().c_str());
    printf("  for       %s\n", recipe.at("use").get<std::string>().c_str());
    printf("  is        %s\n", Composition(recipe).c_str());
    printf("  limits    %s\n", recipe.at("limits").get<std::string>().c_str());
    printf("  evidence  %s\n", Evidence(recipe).c_str());
  }
  return 0;
}

}  // namespace cli
}  // namespace bdn
