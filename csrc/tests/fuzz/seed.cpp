// SPDX-License-Identifier: Apache-2.0
// The manifest of the fuzz targets' folder, the first seed of their corpus: printed, or compared
// with a file, so that the corpus follows when the fixture changes. seed [FILE]
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "package_fixture.h"

int main(int argc, char** argv) {
  const calrt::testing::PackageFixture fixture;
  if (argc < 2) {
    std::fputs(fixture.manifest().c_str(), stdout);
    return 0;
  }
  std::ifstream in(argv[1], std::ios::binary);
  if (std::string{std::istreambuf_iterator<char>(in), {}} == fixture.manifest()) return 0;
  std::fprintf(stderr, "%s is not the fixture's manifest: run tests/fuzz/make_corpus.py\n",
               argv[1]);
  return 1;
}
