package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// The generated C++ project: a tree of libraries, in which library n calls 2n+1 and 2n+2, programs that print what
// their library returns, and files with the programs' output. Odd libraries are compiled by pool blue. All sources
// include common.h.
const (
	libraries = 100
	programs  = 20
	// actions are compile and archive for each library, compile, link and run for each program, and four genrules.
	actions = 2*libraries + 3*programs + 4
)

// project is a Bazel workspace.
type project struct {
	t      *testing.T
	dir    string
	number int // in common.h
}

// newProject writes the workspace: the example's configuration of Bazel, and the sources.
func newProject(t *testing.T) *project {
	t.Helper()
	p := &project{t: t, dir: t.TempDir()}
	require.NoError(t, os.CopyFS(p.dir, os.DirFS(filepath.Join(host.Root(t), "manifests/examples/buildbarn/bazel"))))
	var rules strings.Builder
	rules.WriteString(`cc_library(name = "common", hdrs = ["common.h"])
`)
	for n := range libraries {
		p.library(&rules, n)
	}
	for n := range programs {
		p.write(fmt.Sprintf("calc/main%d.cc", n), fmt.Sprintf(`#include <cstdio>
#include "calc/common.h"
int f%[1]d();
int main() { std::printf("%%d\n", f%[1]d()); }
`, n))
		fmt.Fprintf(&rules, `cc_binary(name = "calc%[1]d", srcs = ["main%[1]d.cc"], deps = [":l%[1]d"])
genrule(name = "run%[1]d", outs = ["run%[1]d.txt"], srcs = [":calc%[1]d"], cmd = "$(location :calc%[1]d) > $@")
`, n)
	}
	// Which worker executes them is their output.
	rules.WriteString(`genrule(name = "who-red", outs = ["red.txt"], cmd = "cat /proc/sys/kernel/hostname > $@")
genrule(name = "who-blue", outs = ["blue.txt"], cmd = "cat /proc/sys/kernel/hostname > $@",
    exec_properties = {"pool": "blue"})
genrule(name = "words", srcs = ["common.h"], outs = ["words.txt"], cmd = "tr a-z A-Z < $< > $@")
# It tells the test that it is running. If wait.txt says so, it ends when the test lets it.
genrule(name = "slow", srcs = ["wait.txt", "common.h"], outs = ["slow.txt"], exec_properties = {"pool": "blue"},
    cmd = "if grep -q true $(location wait.txt); then " +
        "touch /worker/slow; until [ -e /worker/released ]; do sleep 0.1; done; fi; echo done > $@")
`)
	p.write("calc/BUILD", rules.String())
	p.change(1, false)
	return p
}

func (p *project) library(rules *strings.Builder, n int) {
	text, sum, deps := "#include \"calc/common.h\"\n", fmt.Sprintf("kNumber + %d", n), `":common"`
	for _, child := range []int{2*n + 1, 2*n + 2} {
		if child < libraries {
			text += fmt.Sprintf("int f%d();\n", child)
			sum += fmt.Sprintf(" + f%d()", child)
			deps += fmt.Sprintf(`, ":l%d"`, child)
		}
	}
	p.write(fmt.Sprintf("calc/l%d.cc", n), fmt.Sprintf("%sint f%d() { return %s; }\n", text, n, sum))
	pool := ""
	if n%2 == 1 {
		pool = `, exec_properties = {"pool": "blue"}`
	}
	fmt.Fprintf(rules, `cc_library(name = "l%[1]d", srcs = ["l%[1]d.cc"], deps = [%[2]s], linkstatic = True%[3]s)
`, n, deps, pool)
}

// change changes the header that all sources include, and whether the slow action waits for the test.
func (p *project) change(number int, wait bool) {
	p.t.Helper()
	p.number = number
	p.write("calc/common.h", fmt.Sprintf("const int kNumber = %d;\n", number))
	p.write("calc/wait.txt", fmt.Sprintf("%t\n", wait))
}

func (p *project) write(name, text string) {
	p.t.Helper()
	path := filepath.Join(p.dir, name)
	require.NoError(p.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(p.t, os.WriteFile(path, []byte(text), 0o644))
}

// want returns what library n returns.
func (p *project) want(n int) int {
	if n >= libraries {
		return 0
	}
	return p.number + n + p.want(2*n+1) + p.want(2*n+2)
}

// built returns the content of an output file of Bazel's last build.
func (p *project) built(name string) string {
	p.t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, "bazel-bin/calc", name))
	require.NoError(p.t, err)
	return strings.TrimSpace(string(text))
}

// verify checks the output of all programs that Bazel built.
func (p *project) verify() {
	p.t.Helper()
	for n := range programs {
		require.Equal(p.t, fmt.Sprint(p.want(n)), p.built(fmt.Sprintf("run%d.txt", n)))
	}
	require.Equal(p.t, fmt.Sprintf("CONST INT KNUMBER = %d;", p.number), p.built("words.txt"))
}
