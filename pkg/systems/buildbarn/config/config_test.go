package config

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
)

func newFarm(change func(*buildbarn.BuildbarnSpec)) *buildbarn.Buildbarn {
	b := &buildbarn.Buildbarn{ObjectMeta: metav1.ObjectMeta{Name: "farm", Namespace: "builds"}}
	if change != nil {
		change(&b.Spec)
	}
	buildbarn.DefaultFarm(b)
	return b
}

var testTrust = &Trust{Authorities: "-----BEGIN CERTIFICATE-----\n", TokenKeys: map[string]any{"keys": []any{}}}

// parsed parses a rendered file as JSON, with sample values for its variables.
func parsed(t *testing.T, files map[string]string, name string) map[string]any {
	t.Helper()
	text := strings.NewReplacer(`std.extVar("POD_NAME")`, `"p"`, `std.extVar("NODE_NAME")`, `"n"`,
		`importstr "authorities.pem"`, `"ca"`).Replace(files[name])
	var out map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &out), text)
	return out
}

func TestRender(t *testing.T) {
	b := newFarm(func(s *buildbarn.BuildbarnSpec) {
		s.Workers = []buildbarn.FarmWorkers{
			{
				Name: "linux", Platform: []buildbarn.PlatformProperty{{Name: "b", Value: "2"}, {Name: "a", Value: "1"}},
				Concurrency: 4,
			},
			{Name: "gpu", InstanceNamePrefix: "gpu"},
		}
	})
	files, err := Render(b, nil)
	require.NoError(t, err)
	require.Len(t, files, 9)
	require.Contains(t, files["worker-linux.jsonnet"], `"pod": std.extVar("POD_NAME")`)
	queues := parsed(t, files, Scheduler)["predeclaredPlatformQueues"].([]any)
	require.Equal(t,
		map[string]any{"instanceNamePrefix": "", "sizeClasses": []any{0.0}, "platform": map[string]any{"properties": []any{
			map[string]any{"name": "a", "value": "1"},
			map[string]any{"name": "b", "value": "2"}}}}, queues[0], "properties are sorted, as the scheduler wants them")
	require.Equal(t, "farm-scheduler.builds:8983",
		parsed(t, files, "worker-gpu.jsonnet")["scheduler"].(map[string]any)["address"])
	require.Contains(t, files[Frontend], "farm-storage-1.farm-storage.builds:8981")

	mirrored, err := Render(newFarm(func(s *buildbarn.BuildbarnSpec) { s.Storage.Mirrored = true }), nil)
	require.NoError(t, err)
	require.Contains(t, mirrored[Frontend], "farm-storage-3.farm-storage.builds:8981")
	again, err := Render(b, nil)
	require.NoError(t, err)
	require.Equal(t, files, again, "the same farm has the same files")
}

// TestRenderedIsValid checks that any valid farm has a configuration with all files that its programs read.
func TestRenderedIsValid(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		b := newFarm(func(s *buildbarn.BuildbarnSpec) {
			shards := rapid.Int32Range(1, 20).Draw(r, "shards")
			s.Storage.Shards, s.Storage.Mirrored = &shards, rapid.Bool().Draw(r, "mirrored")
			for i := range rapid.IntRange(1, 5).Draw(r, "pools") {
				s.Workers = append(s.Workers, buildbarn.FarmWorkers{
					Name: "p" + string(rune('a'+i)), InstanceNamePrefix: strings.Repeat("x", i),
				})
			}
		})
		require.Empty(r, buildbarn.ValidateFarm(b))
		var trust *Trust
		if rapid.Bool().Draw(r, "TLS") {
			b.Spec.TLS, trust = &buildbarn.FarmTLS{}, testTrust
			buildbarn.DefaultFarm(b)
		}
		files, err := Render(b, trust)
		require.NoError(r, err)
		mains := slices.Concat(Mains("scheduler", ""), Mains("storage", ""), Mains("frontend", ""), Mains("browser", ""))
		for _, w := range b.Spec.Workers {
			mains = append(mains, Mains("worker", w.Name)...)
		}
		used := Used(files, mains)
		require.Len(r, files, len(used)+1, "all but the common file, which is for users")
		for name, text := range used {
			require.NotEmpty(r, text, name)
		}
	})
}

// TestRenderedTLS checks that each server accepts only its intended clients, and that all connections use TLS.
func TestRenderedTLS(t *testing.T) {
	tls := func(clients buildbarn.ClientPolicy) map[string]string {
		files, err := Render(newFarm(func(s *buildbarn.BuildbarnSpec) { s.TLS = &buildbarn.FarmTLS{Clients: clients} }),
			testTrust)
		require.NoError(t, err)
		return files
	}
	files := tls("")
	for name := range files {
		if strings.HasPrefix(name, "runner-") || name == Authorities {
			continue // its socket is inside the pod
		}
		var walk func(any)
		walk = func(v any) {
			switch v := v.(type) {
			case map[string]any:
				if address, ok := v["address"].(string); ok && !strings.HasPrefix(address, "unix:") {
					require.Contains(t, v, "tls", "%s: %s", name, address)
				}
				for _, one := range v {
					walk(one)
				}
			case []any:
				for _, one := range v {
					walk(one)
				}
			}
		}
		walk(parsed(t, files, name))
	}
	policy := func(file, servers string) map[string]any {
		server := parsed(t, files, file)[servers].([]any)[0].(map[string]any)
		require.Contains(t, server, "tls")
		return server["authenticationPolicy"].(map[string]any)
	}
	lets := func(p map[string]any) any {
		return p["tlsClientCertificate"].(map[string]any)["validationJmespathExpression"].(map[string]any)["expression"]
	}
	require.Equal(t, "contains(uris, 'buildbarn://builds/farm/worker')", lets(policy(Scheduler, "workerGrpcServers")))
	require.Equal(t, "contains(uris, 'buildbarn://builds/farm/frontend')", lets(policy(Scheduler, "clientGrpcServers")))
	require.Equal(t, "contains(uris, 'buildbarn://builds/farm/operator')",
		lets(policy(Scheduler, "buildQueueStateGrpcServers")))
	require.NotContains(t, lets(policy(Storage, "grpcServers")), "farm/client")
	require.Equal(t, map[string]any{"expression": "authenticationMetadata.public.role == 'operator'"},
		parsed(t, files, Scheduler)["killOperationsAuthorizer"].(map[string]any)["jmespathExpression"])
	both := policy(Frontend, "grpcServers")["any"].(map[string]any)["policies"].([]any)
	require.Equal(t, "contains(uris, 'buildbarn://builds/farm/client')", lets(both[0].(map[string]any)))
	require.Contains(t, both[1], "jwt")
	files = tls(buildbarn.ClientsAnyone)
	require.Equal(t, map[string]any{"allow": map[string]any{}}, policy(Frontend, "grpcServers"))
}

func TestSizes(t *testing.T) {
	files, err := Render(newFarm(nil), nil)
	require.NoError(t, err)
	storage := parsed(t, files, Storage)
	for part, claim := range map[string]float64{"contentAddressableStorage": 33 << 30, "actionCache": 1 << 30} {
		local := storage[part].(map[string]any)["backend"].(map[string]any)["local"].(map[string]any)
		size := func(o any) float64 { return o.(map[string]any)["file"].(map[string]any)["sizeBytes"].(float64) }
		blocks := size(local["blocksOnBlockDevice"].(map[string]any)["source"])
		sum := blocks + size(local["keyLocationMapOnBlockDevice"])
		require.Less(t, sum, claim)
		require.Greater(t, blocks, claim*0.95)
	}
}

func TestHash(t *testing.T) {
	require.Equal(t, Hash(map[string]string{"a": "1", "b": "2"}), Hash(map[string]string{"b": "2", "a": "1"}))
	require.NotEqual(t, Hash(map[string]string{"a": "1b:"}), Hash(map[string]string{"a": "1", "b": ""}))
}
