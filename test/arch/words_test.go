package arch

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// phrases are words that leave out the thing or the actor. Name it instead; see CONTRIBUTING.
var phrases = regexp.MustCompile(`(?i)\b(those of|that of|nobody|somebody|is told|are told|goes on|whoever)\b`)

// TestCommentsNameThings: no comment and no document uses one of the phrases.
func TestCommentsNameThings(t *testing.T) {
	grep := func(pattern string, files ...string) []string {
		out, err := exec.CommandContext(t.Context(), "git",
			append([]string{"-C", "../..", "grep", "-nE", pattern, "--"}, files...)...).Output()
		require.NoError(t, err)
		return strings.Split(strings.TrimSpace(string(out)), "\n")
	}
	lines := grep(`(^|\s)// `, "*.go", ":!*/zz_*", ":!test/arch/words_test.go")
	require.Greater(t, len(lines), 10_000)
	for _, line := range lines {
		if _, comment, _ := strings.Cut(line, "// "); phrases.MatchString(comment) {
			t.Errorf("name the thing or the actor: %s", line)
		}
	}
	for _, line := range grep(".", "*.md") {
		if phrases.MatchString(line) {
			t.Errorf("name the thing or the actor: %s", line)
		}
	}
}
