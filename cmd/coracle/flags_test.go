package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
)

// TestFlagsOfUpstream: README's table of upstream's flags says which of them server and link have, and both have the
// flags of its first row with the same meaning.
func TestFlagsOfUpstream(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(text), "\n| Flags | Here |\n|---|---|\n")
	require.True(t, ok)
	table, _, _ = strings.Cut(table, "\n\n")
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
	for i, row := range strings.Split(table, "\n") {
		flags, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
		for _, m := range name.FindAllStringSubmatch(flags, -1) {
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
		t.Errorf("README's table has no --%s", f.Name)
	})
}
