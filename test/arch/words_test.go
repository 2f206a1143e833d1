package arch

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// phrases are words in comments that leave out the thing or the actor, with the number of lines that still have them.
// Lower a number when you have rewritten some; do not raise one: name the thing and the actor instead.
var phrases = map[string]int{
	"those of": 133,
	"that of":  72,
	"nobody":   58,
	"somebody": 59,
	"is told":  8,
	"goes on":  27,
	"whoever":  22,
}

// TestCommentsNameThings: comments use no phrase more often than phrases allows.
func TestCommentsNameThings(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "git", "-C", "../..", "grep", "-hE", `(^|\s)// `, "--", "*.go",
		":!*/zz_*", ":!test/arch/words_test.go").Output()
	require.NoError(t, err)
	for phrase, most := range phrases {
		found := 0
		word := regexp.MustCompile(`(?i)// .*\b` + phrase + `\b`)
		for line := range strings.Lines(string(out)) {
			if word.MatchString(line) {
				found++
			}
		}
		if found > most {
			t.Errorf("%d lines of comments say %q, %d are allowed: name the thing or the actor (CONTRIBUTING)", found,
				phrase, most)
		}
	}
}
