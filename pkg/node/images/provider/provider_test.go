package provider

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/node/images/keyring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 3 * time.Minute

// A plugin runs only for images that match its configuration, and its answer is used only for images that it names.
func TestCredentials(t *testing.T) {
	b := newBench(t)
	b.program("one",
		answer("Image", "",
			login("x.io/team", "a")+","+login("*.x.io", "b")+","+login("y.io", "c")+","+login("https://x.io/v2/", "d")))
	b.program("two", `[ "$COLOUR$1" = redarg ] && `+answer("Image", "", login("x.io/team", "e")))
	p := b.open(b.provider("one", `x.io, "*.x.io"`),
		strings.Replace(b.provider("two", "x.io/team", "env: [{name: COLOUR, value: red}]"), "two.sh]", "two.sh, arg]", 1))
	got := p.Credentials(t.Context(), pod(""), "x.io/team/app:1@sha256:"+strings.Repeat("0", 64))
	require.Equal(t, []string{"a", "e", "d"}, passwords(got),
		"the longest first, and of one length in the order of the plugins")
	require.True(t, got[0].Everyones())
	require.Equal(t, "me", got[0].Username)
	require.Equal(t,
		[]string{
			`{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"x.io/team/app"}`,
			`{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"x.io/team/app"}`,
		},
		b.asked())

	require.Equal(t, []string{"d"}, passwords(p.Credentials(t.Context(), pod(""), "x.io/other")))
	require.Len(t, b.asked(), 1)
	require.Equal(t, []string{"b"}, passwords(p.Credentials(t.Context(), pod(""), "r.x.io/a")))
	b.asked()
	require.Empty(t, p.Credentials(t.Context(), pod(""), "y.io/a"), "it is not for these images, whatever it answers")
	require.Empty(t, p.Credentials(t.Context(), pod(""), "busybox"))
	require.Empty(t, p.Credentials(t.Context(), pod(""), "!"))
	require.Empty(t, b.asked())
}

// Answers are cached for an image, a registry or all images, for as long as the plugin says.
func TestCache(t *testing.T) {
	const hour = `,"cacheDuration":"1h"`
	for name, tt := range map[string]struct {
		key, duration, more string
		asked               []int // requests for x.io/a twice, x.io/b, y.io/a
	}{
		"image":             {"Image", hour, "", []int{1, 0, 1, 1}},
		"registry":          {"Registry", hour, "", []int{1, 0, 0, 1}},
		"everything":        {"Global", hour, "", []int{1, 0, 0, 0}},
		"not at all":        {"Global", `,"cacheDuration":"0s"`, "", []int{1, 1, 1, 1}},
		"no default":        {"Global", "", "", []int{1, 1, 1, 1}},
		"by default":        {"Global", "", "1h", []int{1, 0, 0, 0}},
		"rather by default": {"Global", `,"cacheDuration":"0s"`, "1h", []int{1, 1, 1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.program("one", answer(tt.key, tt.duration, login("x.io", "x")+","+login("y.io", "y")))
			provider := b.provider("one", `x.io, y.io`)
			if tt.more != "" {
				provider = strings.Replace(provider, "Duration: 0s", "Duration: "+tt.more, 1)
			}
			p := b.open(provider)
			for i, image := range []string{"x.io/a:1", "x.io/a:2", "x.io/b", "y.io/a"} {
				require.Equal(t, []string{image[:1]}, passwords(p.Credentials(t.Context(), pod(""), image)))
				require.Len(t, b.asked(), tt.asked[i], image)
			}
		})
	}
}

func TestCacheIsBoundedAndForgets(t *testing.T) {
	var c cache
	for i := range 3 * maxEntries {
		c.put(fmt.Sprint(i), nil, time.Hour+time.Duration(i)*time.Second)
	}
	require.Len(t, c.entries, maxEntries)
	_, ok := c.get(fmt.Sprint(3*maxEntries - 1))
	require.True(t, ok)
	c.put("short", nil, time.Nanosecond)
	require.Len(t, c.entries, maxEntries)
	require.Eventually(t, func() bool { _, ok := c.get("short"); return !ok }, patience, time.Microsecond)
	require.Len(t, c.entries, maxEntries-1)
}

// With tokenAttributes, a plugin runs for the pod's service account, and its answer is used for no other account.
func TestServiceAccounts(t *testing.T) {
	const attributes = "tokenAttributes: {serviceAccountTokenAudience: x.io, cacheType: ServiceAccount, " +
		"requireServiceAccount: true, requiredServiceAccountAnnotationKeys: [x.io/role], " +
		"optionalServiceAccountAnnotationKeys: [x.io/zone, x.io/no]}"
	b := newBench(t)
	account := func(name, uid string, annotations map[string]string) {
		b.accounts["ns/"+name] = &corev1.ServiceAccount{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid), Annotations: annotations},
		}
	}
	account("one", "1", map[string]string{"x.io/role": "reader", "x.io/zone": "a", "other": "secret"})
	account("two", "2", map[string]string{"x.io/role": "reader"})
	account("none", "3", nil)
	b.program("p", answer("Registry", `,"cacheDuration":"1h"`, login("x.io", "x")))
	p := b.open(b.provider("p", "x.io", attributes))
	got := p.Credentials(t.Context(), pod("one"), "x.io/a")
	require.Equal(t, keyring.Account{UID: "1", Namespace: "ns", Name: "one"}, got[0].Account)
	require.Equal(t,
		[]string{`{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"x.io/a",` +
			`"serviceAccountToken":"token-0 of 1 for x.io in p","serviceAccountAnnotations":{"x.io/role":"reader","x.io/zone":"a"}}`}, b.asked())
	b.tokens++
	require.Equal(t, got, p.Credentials(t.Context(), pod("one"), "x.io/b"), "for all pods of the account")
	require.Empty(t, b.asked())

	require.Equal(t, keyring.Account{UID: "2", Namespace: "ns", Name: "two"},
		p.Credentials(t.Context(), pod("two"), "x.io/a")[0].Account)
	require.Len(t, b.asked(), 1)
	account("one", "1", map[string]string{"x.io/role": "writer"})
	p.Credentials(t.Context(), pod("one"), "x.io/a")
	require.Len(t, b.asked(), 1, "the annotations are others")
	account("one", "9", map[string]string{"x.io/role": "writer"})
	p.Credentials(t.Context(), pod("one"), "x.io/a")
	require.Len(t, b.asked(), 1, "it is another account of that name")

	for _, name := range []string{"none", "", "missing"} {
		require.Empty(t, p.Credentials(t.Context(), pod(name), "x.io/a"))
		require.Empty(t, b.asked())
	}
	require.Contains(t, b.log(), "service account ns/missing: no such account")
	require.NotContains(t, b.log(), "ns/none")

	// Once per token, and for pods without a service account.
	b.program("p", answer("Registry", `,"cacheDuration":"1h"`, login("x.io", "token-1 of 1 for x.io in p")))
	p = b.open(b.provider("p", "x.io",
		"tokenAttributes: {serviceAccountTokenAudience: x.io, cacheType: Token, requireServiceAccount: false}"))
	account("one", "1", nil)
	for want := range 2 {
		require.Len(t, p.Credentials(t.Context(), pod("one"), "x.io/a"), 1)
		require.Len(t, b.asked(), 1-want)
	}
	b.tokens++
	require.Len(t, p.Credentials(t.Context(), pod("one"), "x.io/a"), 1)
	require.Len(t, b.asked(), 1)
	require.True(t, p.Credentials(t.Context(), pod(""), "x.io/a")[0].Everyones())
	require.Equal(t,
		[]string{`{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"x.io/a"}`},
		b.asked())

	// An answer that contains the token must not be cached for other pods of the account.
	b.tokens = 1
	p = b.open(b.provider("p", "x.io",
		"tokenAttributes: {serviceAccountTokenAudience: x.io, cacheType: ServiceAccount, requireServiceAccount: false}"))
	require.Empty(t, p.Credentials(t.Context(), pod("one"), "x.io/a"))
	require.Contains(t, b.log(), "which needs cacheType Token")
}

// A plugin's failure affects only its own credentials, and the log contains no secret.
func TestBadPlugins(t *testing.T) {
	for name, tt := range map[string]struct{ script, want string }{
		"fails":   {"echo 'no luck' >&2; exit 3", "exit status 3: no luck"},
		"no JSON": {"echo password", "did not write a CredentialProviderResponse"},
		"another version": {
			strings.Replace(answer("Image", "", ""), "k8s.io/v1", "k8s.io/v1beta1", 1),
			"credentialprovider.kubelet.k8s.io/v1beta1",
		},
		"another kind":     {strings.Replace(answer("Image", "", ""), "Response", "Request", 1), "CredentialProviderRequest"},
		"no kind of cache": {answer("Whatever", "", login("x.io", "password")), "cacheKeyType"},
		"much output":      {"head -c 3000000 /dev/zero", "wrote more than 1048576 bytes"},
		"much on stderr": {
			"i=0; while [ $i -lt 1000 ]; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx >&2; i=$((i+1)); done; exit 1",
			"exit status 1: xxx",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.program("p", tt.script)
			p := b.open(b.provider("p", "x.io"))
			require.Empty(t, p.Credentials(t.Context(), pod(""), "x.io/a"))
			require.Contains(t, b.log(), tt.want)
			require.NotContains(t, b.log(), "password")
			require.Less(t, len(b.log()), 4096)
			require.NoError(t,
				testutil.GatherAndCompare(b.metrics,
					strings.NewReader("# HELP kubelet_credential_provider_plugin_errors_total Number of errors from credential "+
						"provider plugin\n"+
						"# TYPE kubelet_credential_provider_plugin_errors_total "+
						"counter\n"+map[bool]string{
						true: "", false: "kubelet_credential_provider_plugin_errors_total{plugin_name=\"p\"} 1\n",
					}[name == "no kind of cache"]),
					"kubelet_credential_provider_plugin_errors_total"))
		})
	}
}

// A plugin that hangs is killed with its children when no request waits for it. Another request for the same answer
// then starts it again.
func TestHangingPlugin(t *testing.T) {
	b := newBench(t)
	b.program("p",
		"[ -e "+filepath.Join(b.dir, "go")+" ] || { echo $$ >"+filepath.Join(b.dir, "pid")+"; sleep 100000; }\n"+
			answer("Image", "", login("x.io", "x"))) // the number is there once it hangs, whatever the test does then
	p := b.open(b.provider("p", "x.io"))
	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan []keyring.Credential, 1), make(chan []keyring.Credential, 1)
	go func() { first <- p.Credentials(ctx, pod(""), "x.io/a") }()
	var pid int
	require.Eventually(t, func() bool {
		data, err := os.ReadFile(filepath.Join(b.dir, "pid"))
		return err == nil && func() bool { n, _ := fmt.Sscan(string(data), &pid); return n == 1 }()
	}, patience, time.Millisecond)
	go func() { second <- p.Credentials(t.Context(), pod(""), "x.io/a") }()
	require.NoError(t, os.WriteFile(filepath.Join(b.dir, "go"), nil, 0o600))
	cancel()
	require.Empty(t, <-first)
	require.Equal(t, []string{"x"}, passwords(<-second))
	require.Eventually(t, func() bool {
		return errors.Is(syscall.Kill(-pid, 0), syscall.ESRCH)
	}, patience, time.Millisecond, "nothing of it is left")
}

// A plugin's child processes are killed after it exits.
func TestNothingOfAPluginIsLeft(t *testing.T) {
	b := newBench(t)
	b.program("p",
		"echo $$ >"+filepath.Join(b.dir, "pid")+"\nsleep 100000 >/dev/null 2>&1 &\n"+answer("Image", "", login("x.io", "x")))
	require.Equal(t, []string{"x"}, passwords(b.open(b.provider("p", "x.io")).Credentials(t.Context(), pod(""), "x.io/a")))
	data, err := os.ReadFile(filepath.Join(b.dir, "pid"))
	require.NoError(t, err)
	var pid int
	_, err = fmt.Sscan(string(data), &pid)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return errors.Is(syscall.Kill(-pid, 0), syscall.ESRCH)
	}, patience, time.Millisecond)
}

// Concurrent identical requests run the plugin once.
func TestOneFlight(t *testing.T) {
	const askers = 20
	b := newBench(t)
	b.accounts["ns/one"] = &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "one", UID: "1"}}
	gate := filepath.Join(b.dir, "gate")
	require.NoError(t, syscall.Mkfifo(gate, 0o600))
	b.program("p", "cat "+gate+"\n"+answer("Image", "", login("x.io", "x")))
	p := b.open(b.provider("p", "x.io",
		"tokenAttributes: {serviceAccountTokenAudience: x.io, cacheType: ServiceAccount, requireServiceAccount: true}"))
	here, ended := make(chan struct{}, askers), make(chan struct{})
	token := p.c.Token
	p.c.Token = func(ctx context.Context, pod *corev1.Pod, account types.UID, audience string) (string, error) {
		here <- struct{}{}
		return token(ctx, pod, account, audience)
	}
	var all sync.WaitGroup
	for range askers {
		all.Go(func() {
			if got := passwords(p.Credentials(t.Context(), pod("one"), "x.io/a")); len(got) != 1 || got[0] != "x" {
				t.Errorf("got %q", got)
			}
		})
	}
	for range askers {
		<-here
	}
	go func() { all.Wait(); close(ended) }()
	require.Eventually(t, func() bool { // each program waits until the gate is opened
		if f, err := os.OpenFile(gate, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
			f.Close()
		}
		select {
		case <-ended:
			return true
		default:
			return false
		}
	}, patience, time.Millisecond)
	require.Less(t, len(b.asked()), askers)
}

func TestConfiguration(t *testing.T) {
	const head = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n"
	b := newBench(t)
	b.program("p", "")
	good := b.provider("p", "x.io")
	token := func(fields string) string { return head + b.provider("p", "x.io", "tokenAttributes: {"+fields+"}") }
	for name, tt := range map[string]struct{ config, want string }{
		"kind":            {strings.Replace(head, "Provider", "", 1) + good, `kind "CredentialConfig"`},
		"version":         {strings.Replace(head, "io/v1", "io/v2", 1) + good, `of "kubelet.config.k8s.io/v2"`},
		"unknown field":   {head + b.provider("p", "x.io", "tokens: 1"), `unknown field "tokens"`},
		"no provider":     {head, "providers: Required value"},
		"twice":           {head + good + good, `providers[1].name: Duplicate value: "p"`},
		"a path":          {head + b.provider("../p", "x.io"), `providers[0].name: Invalid value: "../p"`},
		"no such program": {head + b.provider("q", "x.io"), "there is no program q in " + b.dir},
		"no image":        {head + b.provider("p", ""), "providers[0].matchImages: Required value"},
		"a scheme": {
			head + b.provider("p", "https://x.io"), `providers[0].matchImages: Invalid value: "https://x.io"`,
		},
		"no version": {
			head + strings.Replace(good, "io/v1", "io/v7", 1),
			`providers[0].apiVersion: Unsupported value: "credentialprovider.kubelet.k8s.io/v7"`,
		},
		"no duration": {
			head + strings.Replace(good, "defaultCacheDuration: 0s", "", 1), "providers[0].defaultCacheDuration: Required value",
		},
		"a negative duration": {
			head + strings.Replace(good, "Duration: 0s", "Duration: -1s", 1), "providers[0].defaultCacheDuration: Invalid value",
		},
		"no audience": {
			token("cacheType: Token, requireServiceAccount: true"),
			"tokenAttributes.serviceAccountTokenAudience: Required value",
		},
		"no kind of cache": {
			token("serviceAccountTokenAudience: a, requireServiceAccount: true"), "tokenAttributes.cacheType: Unsupported value",
		},
		"required or not": {
			token("serviceAccountTokenAudience: a, cacheType: Token"), "tokenAttributes.requireServiceAccount: Required value",
		},
		"annotations of nobody": {
			token("serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: false, " +
				"requiredServiceAccountAnnotationKeys: [a]"), "requiredServiceAccountAnnotationKeys: Forbidden",
		},
		"an annotation twice": {
			token("serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: true, " +
				"requiredServiceAccountAnnotationKeys: [a], optionalServiceAccountAnnotationKeys: [a]"),
			"AnnotationKeys: Duplicate value",
		},
		"a name": {
			token("serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: true, " +
				"optionalServiceAccountAnnotationKeys: [a b]"), `optionalServiceAccountAnnotationKeys: Invalid value: "a b"`,
		},
		"tokens in a former one": {
			strings.Replace(token("serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: true"), "io/v1",
				"io/v1beta1", 1), "has no tokenAttributes",
		},
		"tokens for a former one": {
			strings.Replace(token("serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: true"),
				"credentialprovider.kubelet.k8s.io/v1", "credentialprovider.kubelet.k8s.io/v1beta1", 1),
			"tokenAttributes: Forbidden",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := b.try(tt.config)
			require.ErrorContains(t, err, tt.want)
			require.ErrorContains(t, err, "image-credential-provider-")
		})
	}
	former, err := b.try(strings.Replace(head, "io/v1", "io/v1alpha1", 1) +
		strings.Replace(good, "io/v1", "io/v1beta1", 1))
	require.NoError(t, err)
	require.Len(t, former.plugins, 1)

	// The files in a directory are read in the order of their names.
	dir := filepath.Join(b.dir, "folder")
	require.NoError(t, os.Mkdir(dir, 0o700))
	_, _, err = read(dir)
	require.ErrorContains(t, err, "no file")
	for file, name := range map[string]string{"b.yaml": "two", "a.json": "one", "c.yml": "three", "d.txt": "four"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(head+b.provider(name, "x.io")), 0o600))
	}
	list, hash, err := read(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"one", "two", "three"}, []string{list[0].Name, list[1].Name, list[2].Name})
	require.Regexp(t, "^sha256:[0-9a-f]{64}$", hash)
}

// Plugins do not get CORACLE_ options, which may contain the join token.
func TestEnvironment(t *testing.T) {
	var one plugin
	require.Equal(t, []string{"PATH=/bin"}, one.environment([]string{"CORACLE_TOKEN=secret", "PATH=/bin"}))
}
