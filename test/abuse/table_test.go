package abuse

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheTableOfAttacks compares the manual's page "attacks" with the tests: each attack of TestAbuse has a line, and
// each test that the page names exists.
func TestTheTableOfAttacks(t *testing.T) {
	const root = "../.."
	page, err := os.ReadFile(filepath.Join(root, "pkg/cli/manual/pages/explanation/attacks.md"))
	require.NoError(t, err)
	code, err := os.ReadFile("abuse_test.go")
	require.NoError(t, err)
	here := map[string]bool{}
	for _, m := range regexp.MustCompile(`\t\t\{"([^"]+)", `).FindAllSubmatch(code, -1) {
		here[strings.ReplaceAll(string(m[1]), " ", "_")] = true
	}
	require.NotEmpty(t, here)
	beside := regexp.MustCompile("`(Test\\w+)` in `([a-z/]+)` \\|$")
	named := regexp.MustCompile("`([A-Za-z0-9_]+)`")
	others := 0
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		cells := strings.Split(strings.Trim(line, "|"), " | ")
		if !strings.HasPrefix(line, "|") || len(cells) != 3 || strings.Contains(line, "Attack") {
			continue
		}
		if m := beside.FindStringSubmatch(line); m != nil {
			others++
			require.True(t, exists(t, filepath.Join(root, m[2]), m[1]), "%s has no %s", m[2], m[1])
			continue
		}
		tests := named.FindAllStringSubmatch(cells[2], -1)
		require.NotEmpty(t, tests, "no test: %s", line)
		for _, m := range tests {
			require.True(t, here[m[1]], "TestAbuse has no attack %s", m[1])
			delete(here, m[1])
		}
	}
	require.Empty(t, here, "attacks without a line in the manual")
	require.NotZero(t, others)
}

// exists reports whether a package has a test of that name.
func exists(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	for _, file := range files {
		code, err := os.ReadFile(file)
		require.NoError(t, err)
		if strings.Contains(string(code), "\nfunc "+name+"(") {
			return true
		}
	}
	return false
}
