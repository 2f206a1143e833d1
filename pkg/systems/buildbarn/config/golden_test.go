package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
)

// TestGolden compares rendered farms with testdata; UPDATE=1 rewrites it. The tests of hack/buildbarn parse the same
// files as Buildbarn's programs do.
func TestGolden(t *testing.T) {
	trust := map[string]*Trust{
		"tls": {
			Authorities: "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
			TokenKeys: map[string]any{"keys": []any{map[string]any{
				"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
				"y": "x0Hx3k5TnVdzYFqW4gG1Hq1xAE7LA3C1NqzJgKCcFzY"}}},
		},
	}
	for name, change := range map[string]func(*buildbarn.BuildbarnSpec){
		"plain": nil,
		"mirrored": func(s *buildbarn.BuildbarnSpec) {
			s.Storage.Mirrored = true
			s.Config.BrowserURL = "https://browser.example.com"
			s.Workers = []buildbarn.FarmWorkers{
				{
					Name: "linux", Concurrency: 4,
					Platform: []buildbarn.PlatformProperty{{Name: "OSFamily", Value: "linux"}, {Name: "ISA", Value: "x86-64"}},
				},
				{Name: "gpu", InstanceNamePrefix: "gpu", Scale: &buildbarn.FarmScale{Max: 3}},
			}
		},
		"tls": func(s *buildbarn.BuildbarnSpec) { s.TLS = &buildbarn.FarmTLS{} },
	} {
		files, err := Render(newFarm(change), trust[name])
		require.NoError(t, err)
		dir := filepath.Join("testdata", name)
		if os.Getenv("UPDATE") != "" {
			require.NoError(t, os.RemoveAll(dir))
			require.NoError(t, os.MkdirAll(dir, 0o755))
			for file, text := range files {
				require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
			}
		}
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, entries, len(files))
		for file, want := range files {
			text, err := os.ReadFile(filepath.Join(dir, file))
			require.NoError(t, err)
			require.Equal(t, want, string(text), "%s/%s: after a change that is meant, UPDATE=1 and `make buildbarn`", name,
				file)
		}
	}
}
