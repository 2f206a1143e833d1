package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/cli/manual"
)

// TestFlagsOfUpstream checks the manual's lists of upstream flags that server and kube-apiserver accept. Both
// accept all flags in its first section.
func TestFlagsOfUpstream(t *testing.T) {
	m, err := manual.Load()
	require.NoError(t, err)
	page, ok := m.Page("api-server-flags")
	require.True(t, ok)
	sections := strings.Split(page.Text, "\n## ")[1:]
	server, link := pflag.NewFlagSet("server", pflag.ContinueOnError), kubeAPIServerCommand().Flags()
	for _, s := range config.NewOptions().Of(config.ServerPart) {
		server.AddFlagSet(s.Flags)
	}
	name := regexp.MustCompile("`([a-z0-9-]+\\*?)`")
	has := func(f *pflag.FlagSet, name string) (found bool) {
		prefix, many := strings.CutSuffix(name, "*")
		f.VisitAll(func(f *pflag.Flag) { found = found || f.Name == name || many && strings.HasPrefix(f.Name, prefix) })
		return found
	}
	documented := map[string]bool{}
	for i, section := range sections {
		_, flags, _ := strings.Cut(section, "\n\n`")
		for _, m := range name.FindAllStringSubmatch("`"+flags, -1) {
			documented[m[1]] = true
			require.Equal(t, i == 0, has(server, m[1]), "server: %s", m[1])
			require.Equal(t, i < 2, has(link, m[1]), "kube-apiserver: %s", m[1])
		}
	}
	require.Greater(t, len(documented), 80)
	link.VisitAll(func(f *pflag.Flag) {
		for d := range documented {
			if d == f.Name || strings.HasSuffix(d, "*") && strings.HasPrefix(f.Name, strings.TrimSuffix(d, "*")) {
				return
			}
		}
		t.Errorf("the manual's page has no --%s", f.Name)
	})
}
