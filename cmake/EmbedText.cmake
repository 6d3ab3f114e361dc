# Writes the file FROM as a text in C++, NAME(), in namespace bdn, to TO.
file(READ ${FROM} text)
# Literals have a length that compilers must take; parts of it stand one after the other.
string(REPLACE "\n\n" "\n)page\"\nR\"page(\n" text "${text}")
file(WRITE ${TO} "#include <string_view>\n\nnamespace bdn {\n\nstd::string_view ${NAME}() {\n"
  "  return R\"page(${text})page\";\n}\n\n}  // namespace bdn\n")
