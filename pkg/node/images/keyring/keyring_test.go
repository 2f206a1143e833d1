package keyring

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func secret(t testing.TB, name string, logins map[string]string) *corev1.Secret {
	auths := map[string]any{}
	for registry, user := range logins {
		auths[registry] = map[string]string{
			"auth": base64.StdEncoding.EncodeToString([]byte(user + ":" + user + "-password")),
		}
	}
	data, err := json.Marshal(map[string]any{"auths": auths})
	require.NoError(t, err)
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: "uid"}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: data},
	}
}

// Cases of TestURLsMatch, TestDockerKeyringForGlob, TestKeyringMiss and the Docker Hub tests in Kubernetes.
func TestLookup(t *testing.T) {
	for _, c := range []struct {
		registry, image string
		want            bool
	}{
		{"*.kubernetes.io", "prefix.kubernetes.io/a", true},
		{"prefix.*.io", "prefix.kubernetes.io/a", true},
		{"prefix.kubernetes.*", "prefix.kubernetes.io/a", true},
		{"*-good.kubernetes.io", "prefix-good.kubernetes.io/a", true},
		{"*.kubernetes.io/blah", "prefix.kubernetes.io/blah", true},
		{"prefix.*.io/foo", "prefix.kubernetes.io/foo/bar", true},
		{"*.kubernetes.io:1111/blah", "prefix.kubernetes.io:1111/blah", true},
		{"prefix.*.io:1111/foo", "prefix.kubernetes.io:1111/foo/bar", true},
		{"*.kubernetes.io", "kubernetes.io/a", false},
		{"*.*.kubernetes.io", "prefix.kubernetes.io/a", false},
		{"*.*.kubernetes.io", "kubernetes.io/a", false},
		{"*kubernetes.io", "a.kubernetes.io/a", false},
		{"*kubernetes.io", "kubernetes.io/a", true},
		{"*.*.*.kubernetes.io", "a.b.c.kubernetes.io/a", true},
		{"kubernetes.io", "kubernetes.com/a", false},
		{"k*.io", "quay.io/a", false},
		{"*.kubernetes.io:1234/blah", "prefix.kubernetes.io:1111/blah", false},
		{"prefix.*.io/foo", "prefix.kubernetes.io:1111/foo/bar", false},
		{"https://hello.kubernetes.io", "hello.kubernetes.io/foo/bar:tag", true},
		{"https://*.docker.io/path", "prefix.docker.io/path/foo/bar", true},
		{"https://prefix.*.io/path", "prefix.docker.io/path/subpath/foo", true},
		{"https://*.docker.io:8888", "prefix.docker.io:8888/foo/bar", true},
		{"https://*.docker.io/v1/", "prefix.docker.io/path/foo", true},
		{"https://*.docker.io/v2/", "prefix.docker.io/path/foo", true},
		{"prefix.docker.io:1111", "prefix.docker.io:1111/path/foo", true},
		{"https://hello.kubernetes.io", "world.mesos.org/foo/bar", false},
		{"https://*.docker.com", "prefix.docker.io/foo", false},
		{"https://suffix.*.io", "prefix.docker.io/foo", false},
		{"https://prefix.docker.c*", "prefix.docker.io/foo", false},
		{"example.com/team", "example.com/other/image", false},
		{"example.com", "example.com.evil.org/image", false},
		{"example.com", "evil.org/example.com/image", false},
		{"https://index.docker.io/v1/", "world.mesos.org/foo/bar", false},
		{"https://index.docker.io/v1/", "busybox", true},
		{"https://index.docker.io/v1/", "me/private:1", true},
		{"https://index.docker.io/v1/", "docker.io/me/private", true},
		{"docker.io", "me/private", true},
		{"[::1", "me/private", false},
	} {
		var k Keyring
		require.NoError(t, k.Add(secret(t, "s", map[string]string{c.registry: "me"})))
		got := k.Lookup(c.image)
		require.Equal(t, c.want, len(got) == 1, "%s for %s", c.registry, c.image)
		if c.want {
			require.Equal(t, "me", got[0].Username)
			require.Equal(t, "me-password", got[0].Password)
		}
	}
}

func TestMostSpecificFirstAndAllOfARotation(t *testing.T) {
	var k Keyring
	require.NoError(t,
		k.Add(secret(t, "one", map[string]string{"example.com": "host", "example.com/team": "team", "other.com": "other"})))
	require.NoError(t, k.Add(secret(t, "two", map[string]string{"example.com/team": "rotated"})))
	require.NoError(t, k.Add(&corev1.Secret{Type: corev1.SecretTypeOpaque}))
	require.Error(t,
		k.Add(&corev1.Secret{Type: corev1.SecretTypeDockercfg, Data: map[string][]byte{corev1.DockerConfigKey: []byte("{")}}))
	var users []string
	for _, c := range k.Lookup("example.com/team/image") {
		users = append(users, c.Username+" of "+c.Secret.Name)
	}
	require.Equal(t, []string{"team of one", "rotated of two", "host of one"}, users)
}

func TestLookupIsBounded(t *testing.T) {
	var k Keyring
	for i := range 100 {
		require.NoError(t, k.Add(secret(t, fmt.Sprint(i), map[string]string{"example.com": fmt.Sprint(i)})))
	}
	require.Len(t, k.Lookup("example.com/a"), maxMatches)
}

func TestDockercfgAndTokens(t *testing.T) {
	var k Keyring
	require.NoError(t, k.Add(&corev1.Secret{Type: corev1.SecretTypeDockercfg, Data: map[string][]byte{
		corev1.DockerConfigKey: []byte(
			`{"a.io":{"username":"u","password":"p"},"b.io":{"registrytoken":"t"},"c.io":{"auth":"!"}}`),
	}}))
	require.Equal(t, "u", k.Lookup("a.io/x")[0].Username)
	require.Equal(t, "t", k.Lookup("b.io/x")[0].Token)
	require.Empty(t, k.Lookup("c.io/x"))
	require.NotEqual(t, k.Lookup("a.io/x")[0].Secret.Hash, k.Lookup("b.io/x")[0].Secret.Hash)
}

// No secret or image name makes the keyring panic or exceed its limit.
func FuzzKeyring(f *testing.F) {
	f.Add([]byte(`{"auths":{"https://index.docker.io/v1/":{"auth":"YTpi"}}}`), "busybox")
	f.Add([]byte(`{"auths":{"*.io:1/[a":{"username":"a"}}}`), "a.io:1/[a")
	f.Fuzz(func(t *testing.T, data []byte, image string) {
		var k Keyring
		_ = k.Add(&corev1.Secret{
			Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: data},
		})
		_ = k.Add(&corev1.Secret{Type: corev1.SecretTypeDockercfg, Data: map[string][]byte{corev1.DockerConfigKey: data}})
		require.LessOrEqual(t, len(k.Lookup(image)), maxMatches)
	})
}
