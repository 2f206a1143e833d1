package check

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestExcess checks that only failures that the files cause become a verdict, since verdicts are cached.
func TestExcess(t *testing.T) {
	ended := exec.Command("/bin/true")
	require.NoError(t, ended.Run())
	for complaint, want := range map[string]string{
		"runtime: goroutine stack exceeds 67108864-byte limit\nfatal error: stack overflow": "nested too deeply",
		"fatal error: runtime: out of memory": "evaluating it takes more " +
			"than 320 MiB of memory",
		"runtime: out of memory: cannot allocate 8000004096-byte block (7602176 in use)": "evaluating it takes more " +
			"than 320 MiB of memory",
		"fatal error: runtime: cannot allocate memory": "evaluating it takes more " +
			"than 320 MiB of memory",
		"runtime: failed to create new OS thread (have 5 already; errno=11)":            "",
		"the machine lacks the 320 MiB of memory that an evaluation may use (errno 12)": "",
		"read /dev/stdin: cannot allocate memory":                                       "",
	} {
		got, excess := excess(ended.ProcessState, complaint)
		require.Equal(t, want, got, complaint)
		require.Equal(t, want != "", excess, complaint)
	}
}
