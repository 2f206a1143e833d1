package upstream_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
	"github.com/coracle-dev/coracle/test/upstream"
)

var (
	flagLine     = regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z0-9-]+)\b(.*(?:\n {20,}.*)*)`)
	flagDefault  = regexp.MustCompile(`\(default "?([^")]*)"?\)`)
	documentFlag = regexp.MustCompile("`([a-z][a-z0-9-]*)(-\\*)?`")
)

// ourDefaults are the flags of the link kube-apiserver whose defaults differ from upstream's, and why.
var ourDefaults = map[string]string{
	"authentication-token-webhook-version": "upstream's is deprecated",
	"requestheader-username-headers":       "usual names", "requestheader-uid-headers": "usual names",
	"requestheader-group-headers": "usual names", "requestheader-extra-headers-prefix": "usual names",
	"requestheader-allowed-names": "said in words", "service-account-issuer": "said in words",
	"service-account-max-token-expiration": "said in words",
	"service-cluster-ip-range":             "upstream's is deprecated",
}

// TestUpstreamFlagsAreInTheManual checks that the manual page has exactly the flags of upstream's kube-apiserver,
// and that the flags of the link have upstream's defaults.
func TestUpstreamFlagsAreInTheManual(t *testing.T) {
	programs := upstream.Needs(t)
	root := host.Root(t)
	link := filepath.Join(t.TempDir(), upstream.APIServer)
	require.NoError(t, os.Symlink(filepath.Join(root, "bin/coracle"), link))
	theirs, ours := flagsOf(t, filepath.Join(programs, upstream.APIServer)), flagsOf(t, link)
	require.Greater(t, len(theirs), 150)

	text, err := os.ReadFile(filepath.Join(root, "pkg/cli/manual/pages/reference/api-server-flags.md"))
	require.NoError(t, err)
	documented := map[string]bool{} // whether upstream has it
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		_, flags, _ := strings.Cut(section, "\n\n`")
		for _, m := range documentFlag.FindAllStringSubmatch("`"+flags, -1) {
			name := m[1]
			if m[2] != "" {
				name += "-"
			}
			documented[name] = false
		}
	}
	for name := range theirs {
		known := name == "help" || name == "version"
		for d := range documented {
			if d == name || strings.HasSuffix(d, "-") && strings.HasPrefix(name, d) {
				documented[d], known = true, true
			}
		}
		if !known {
			t.Errorf("the manual's page has no --%s", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(documented)) {
		if !documented[name] {
			t.Errorf("upstream has no --%s, which the manual's page has", name)
		}
	}
	for name, value := range ours {
		if upstreams, has := theirs[name]; has && !strings.Contains(value, " ") && value != upstreams &&
			ourDefaults[name] == "" {
			t.Errorf("--%s has the default %q, upstream's is %q", name, value, upstreams)
		}
	}
}

func flagsOf(t *testing.T, program string) map[string]string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, "--help").CombinedOutput()
	require.NoError(t, err, "%s", out)
	flags := map[string]string{}
	for _, m := range flagLine.FindAllStringSubmatch(string(out), -1) {
		value := ""
		if d := flagDefault.FindStringSubmatch(m[2]); d != nil {
			value = d[1]
		}
		flags[m[1]] = value
	}
	return flags
}
