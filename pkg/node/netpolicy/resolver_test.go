package netpolicy

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/testing/registrytest"
)

// patience is the timeout for expected results.
const patience = time.Minute

// TestTheResolver changes a cluster's objects: rules appear with the first policy, follow the pods they select, and
// disappear with the last policy.
func TestTheResolver(t *testing.T) {
	e := registrytest.Start(t, registrytest.Options{})
	c := e.As("admin")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r := NewResolver(c, slog.New(slog.DiscardHandler))
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(running) }()
	defer func() { stop(); require.NoError(t, <-ended) }()
	version := ""
	next := func() *Rules {
		t.Helper()
		rules, err := r.Next(ctx, "n1", version)
		require.NoError(t, err)
		version = rules.Version
		return rules
	}
	require.False(t, next().Active)

	require.NoError(t,
		c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"team": "a"}}}))
	require.NoError(t,
		c.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "default"}}))
	pod := func(name, node string) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": name}},
			Spec: corev1.PodSpec{NodeName: node,
				Containers: []corev1.Container{{Name: "c", Image: "x"}}},
		}
		require.NoError(t, c.Create(ctx, p))
		return p
	}
	address := func(p *corev1.Pod, ip string) {
		p.Status.PodIP, p.Status.PodIPs = ip, []corev1.PodIP{{IP: ip}}
		require.NoError(t, c.Status().Update(ctx, p))
	}
	web, db := pod("web", "n1"), pod("db", "n2")
	policy := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p"}, Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Ingress: []networkingv1.NetworkPolicyIngressRule{
				{
					From: []networkingv1.NetworkPolicyPeer{
						{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}},
					},
				},
			}},
	}
	require.NoError(t, c.Create(ctx, policy))
	rules := next()
	require.True(t, rules.Active)
	require.Len(t, rules.Pods, 1)
	require.Equal(t, web.UID, rules.Pods[0].UID)
	chain := rules.Chains[rules.Pods[0].Ingress]
	require.Len(t, chain, 1)
	require.Empty(t, rules.Addresses[chain[0].Addresses])
	require.Empty(t, rules.Pods[0].Egress)

	address(db, "10.42.1.2")
	require.Equal(t, []netip.Addr{netip.MustParseAddr("10.42.1.2")}, next().Addresses[chain[0].Addresses])
	// An unselected pod on another node does not change the version.
	address(pod("other", "n2"), "10.42.1.3")
	for after := ""; ; { // until the pod's own node has it
		rules, err := r.Next(ctx, "n2", after)
		require.NoError(t, err)
		if after = rules.Version; slices.ContainsFunc(rules.Pods, func(p Pod) bool {
			return p.Name == "other" && p.Address.IsValid()
		}) {
			break
		}
	}
	same, _, _, err := r.rules(ctx, "n1", version)
	require.NoError(t, err)
	require.Nil(t, same, "they are those of that version")

	require.NoError(t, c.Delete(ctx, policy))
	require.False(t, next().Active)
}

func answer(code int, body string) (*http.Response, error) {
	return &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader(body))}, nil
}

// TestAnswersOfAServer checks that Remote asks again if nothing changed, and returns an error for an invalid answer.
func TestAnswersOfAServer(t *testing.T) {
	var asked []string
	answers := []func() (*http.Response, error){
		func() (*http.Response, error) { return answer(http.StatusNoContent, "") },
		func() (*http.Response, error) {
			return answer(http.StatusOK, string((&Rules{Active: true}).encode()))
		},
		func() (*http.Response, error) { return answer(http.StatusForbidden, "no") },
		func() (*http.Response, error) { return answer(http.StatusOK, "{") },
		func() (*http.Response, error) { return answer(http.StatusOK, `{"pods":[{"ingress":"in-x"}]}`) },
		func() (*http.Response, error) { return nil, errors.New("no connection") },
	}
	r := Remote{Do: func(req *http.Request) (*http.Response, error) {
		asked = append(asked, req.URL.String())
		a := answers[0]
		answers = answers[1:]
		return a()
	}}
	rules, err := r.Next(t.Context(), "n1", "v1")
	require.NoError(t, err)
	require.True(t, rules.Active)
	require.Equal(t, []string{"/api/v1/nodes/n1/networkpolicy?after=v1", "/api/v1/nodes/n1/networkpolicy?after=v1"}, asked)
	for _, want := range []string{"403: no", "not valid", "not there", "no connection"} {
		_, err = r.Next(t.Context(), "n1", "v1")
		require.ErrorContains(t, err, want)
	}
}

type given chan *Rules

func (g given) Next(ctx context.Context, _, after string) (*Rules, error) {
	for {
		select {
		case r := <-g:
			if r == nil {
				return nil, errors.New("no server")
			}
			if r.Version != after {
				return r, nil
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// TestNewPodsWait checks that a pod's containers start once its rules are in the kernel, at once if there are no
// policies, and without a server if the pod is static.
func TestNewPodsWait(t *testing.T) {
	source := given(make(chan *Rules))
	e := NewEnforcer(Config{Source: source, NodeName: "n1", Prefix: "wait", Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	<-e.Ready()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	setup := func(p *corev1.Pod) <-chan error {
		done := make(chan error, 1)
		go func() { done <- e.Setup(ctx, p, "10.42.0.5") }()
		return done
	}
	waiting := setup(pod)
	require.NoError(t, <-setup(&corev1.Pod{ObjectMeta: metaWith("kubernetes.io/config.source", "file")}))
	source <- nil // the server is unreachable, then reachable
	source <- sealed(&Rules{})
	require.NoError(t, <-waiting)

	rules := &Rules{
		Active: true,
		Chains: map[string][]Rule{"in-1": {}},
		Pods:   []Pod{{UID: "other", Address: netip.MustParseAddr("10.42.0.9"), Ingress: "in-1"}},
	}
	source <- sealed(rules)
	source <- nil // the rules are known when this is read
	pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "new"}}
	waiting = setup(pod)
	rules = &Rules{Active: true, Chains: rules.Chains, Pods: append(rules.Pods, Pod{UID: "new", Ingress: "in-1"})}
	source <- sealed(rules)
	require.NoError(t, <-waiting)
	e.mu.Lock()
	require.Equal(t, netip.MustParseAddr("10.42.0.5"), e.written["new"])
	e.mu.Unlock()
	e.Release(pod)
	require.NotContains(t, e.local, pod.UID)
	cancel()
	require.NoError(t, <-ended)
	require.NoError(t, Reset("wait"))
	require.NoError(t, Reset("wait"), "twice")
}

// TestPodsWhoseRulesAreNotInTheKernel checks that pods do not start before their rules are in the kernel, both for
// the first policy, whether or not the kernel accepts it, and for later ones.
func TestPodsWhoseRulesAreNotInTheKernel(t *testing.T) {
	e := NewEnforcer(Config{})
	e.kernel = newTestKernel(t)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "new"}}
	now, cancel := context.WithCancel(t.Context())
	cancel()
	with := func(r Rules) { e.rules = &r }
	with(Rules{})
	require.ErrorIs(t, e.Setup(now, p, "10.42.0.5"), context.Canceled, "of an earlier process there may be a table")
	require.NoError(t, e.sync(t.Context()))
	require.NoError(t, e.Setup(now, p, "10.42.0.5"), "there are no policies")

	in := map[string][]Rule{"in-1": {}}
	with(Rules{Active: true, Chains: in, Pods: []Pod{{UID: "new", Ingress: "in-none"}}})
	require.Error(t, e.Setup(now, p, "10.42.0.5"), "the first policy is not written yet")
	require.Error(t, e.sync(t.Context()))
	require.Error(t, e.Setup(now, p, "10.42.0.5"), "the kernel refused it")
	changed := e.changed
	with(Rules{})
	require.NoError(t, e.sync(t.Context()))
	<-changed // Setup checks again if the policy is deleted before it was written
	require.NoError(t, e.Setup(now, p, "10.42.0.5"))

	with(Rules{Active: true, Chains: in})
	require.NoError(t, e.sync(t.Context()))
	require.Error(t, e.Setup(now, p, "10.42.0.5"), "the rules are older than the pod")
	with(Rules{Active: true, Chains: in, Pods: []Pod{{UID: "new", Ingress: "in-1"}}})
	require.NoError(t, e.sync(t.Context()))
	require.NoError(t, e.Setup(now, p, "10.42.0.5"))
	require.Error(t, e.Setup(now, p, "10.42.0.6"), "at another address")
}

// TestPodsThatAreGoneFromTheAPI checks that a pod whose deletion was forced stays isolated until its processes have
// ended, and that the next pod at its address then has its own rules.
func TestPodsThatAreGoneFromTheAPI(t *testing.T) {
	source := given(make(chan *Rules))
	e := NewEnforcer(Config{Source: source, Logger: slog.New(slog.DiscardHandler)})
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { defer close(done); e.follow(ctx) }()
	at := netip.MustParseAddr("10.42.0.5")
	e.local["forced"] = at
	send := func(r *Rules) *state {
		source <- sealed(r)
		source <- nil // the rules are known when this is read
		e.mu.Lock()
		defer e.mu.Unlock()
		s, _ := e.rules.state(e.local)
		return s
	}
	peers := map[string][]netip.Addr{"p1": {netip.MustParseAddr("10.42.0.7")}}
	forced := Pod{UID: "forced", Egress: "out-1"}
	rules := func(pods ...Pod) *Rules {
		return &Rules{Active: true, Chains: map[string][]Rule{"out-1": {{Addresses: "p1"}}}, Addresses: peers, Pods: pods}
	}
	send(rules(forced, Pod{UID: "elsewhere", Address: netip.MustParseAddr("10.42.0.8"), Egress: "out-1"}))
	other := Pod{UID: "other", Address: netip.MustParseAddr("10.42.0.9"), Egress: "out-2"}
	later := &Rules{Active: true, Chains: map[string][]Rule{"out-2": {}}, Pods: []Pod{other}}
	for range 2 {
		s := send(later)
		require.Equal(t, map[netip.Addr]string{at: "out-1", other.Address: "out-2"}, s.egress)
		require.Equal(t, []Rule{{Addresses: "p1"}}, s.chains["out-1"])
		require.Equal(t, peers, s.addresses)
		later = &Rules{Active: true, Chains: later.Chains, Pods: []Pod{other, {UID: "next"}}}
	}
	e.mu.Lock()
	e.local["next"] = at // before the release of the other
	s, _ := e.rules.state(e.local)
	e.mu.Unlock()
	require.NotContains(t, s.egress, at)
	e.Release(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "forced"}})
	require.NotContains(t, send(rules(other)).egress, at)
	require.Len(t, e.rules.Pods, 2, "next, whose rules are not in these, and other")
	require.Empty(t, send(&Rules{}).egress, "no policies")
	cancel()
	<-done
}

// TestPodsOfAnEarlierProcess checks that a pod that a forced deletion removed from the API, and whose rules an earlier
// process had, is isolated while its processes run.
func TestPodsOfAnEarlierProcess(t *testing.T) {
	forced, static := netip.MustParseAddr("10.42.0.5"), netip.MustParseAddr("10.42.0.6")
	left := map[string]netip.Addr{"forced": forced, "static": static, "known": netip.MustParseAddr("10.42.0.7")}
	source := given(make(chan *Rules))
	e := NewEnforcer(Config{
		Source:    source,
		Prefix:    "left",
		Sandboxes: func() map[string]netip.Addr { return left },
		Logger:    slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	<-e.Ready()
	p := &corev1.Pod{ObjectMeta: metaWith("kubernetes.io/config.source", "file")}
	p.UID = "static"
	require.NoError(t, e.Setup(ctx, p, static.String()))
	send := func(pods ...Pod) *state {
		source <- sealed(&Rules{Active: true, Pods: pods, Chains: map[string][]Rule{}})
		source <- nil // the rules are known when this is read
		e.mu.Lock()
		defer e.mu.Unlock()
		s, _ := e.rules.state(e.local)
		return s
	}
	for range 2 {
		s := send(Pod{UID: "known"})
		require.Len(t, s.egress, 1, "%v", s.egress)
		require.Contains(t, s.chains, s.egress[forced])
		require.Contains(t, s.chains, s.ingress[forced])
		require.Empty(t, s.chains[s.egress[forced]])
	}
	e.Release(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "forced"}})
	require.Empty(t, send(Pod{UID: "known"}).egress)
	cancel()
	require.NoError(t, <-done)
	require.NoError(t, Reset("left"))
}

func sealed(r *Rules) *Rules {
	r.encode()
	return r
}

// TestEncodedRulesHaveTheirVersion checks that the version in the encoding changes with any other field.
func TestEncodedRulesHaveTheirVersion(t *testing.T) {
	var versions []string
	for _, active := range []bool{false, true} {
		rules := &Rules{Active: active}
		var decoded Rules
		require.NoError(t, json.Unmarshal(rules.encode(), &decoded))
		require.Equal(t, *rules, decoded)
		first := rules.Version
		rules.encode()
		require.Equal(t, first, rules.Version)
		versions = append(versions, first)
	}
	require.NotEqual(t, versions[0], versions[1])
}
