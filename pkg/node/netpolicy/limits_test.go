package netpolicy

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coracle-dev/coracle/pkg/testing/registrytest"
)

const (
	allowDB = `{metadata: {namespace: shop}, spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}}`
	// webOf selects the pod web in bank, for both directions.
	webOf = `{metadata: {namespace: bank}, spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress, Egress], ingress: [{from: [%s]}]}}`
)

// TestANamespaceOverItsLimits checks that a namespace over its limits stays isolated and allows nothing, without an
// effect on other namespaces.
func TestANamespaceOverItsLimits(t *testing.T) {
	repeat := func(n int, format string) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(format, i))
		}
		return strings.Join(all, ",")
	}
	room := func(sets, rules int) int { return sets*nameSize + rules*ruleSize }
	for name, c := range map[string]struct {
		policy string
		limits limits
		why    string
		db     bool // whether the unselected pod is isolated, too
	}{
		"many selectors": {
			fmt.Sprintf(webOf, repeat(100, `{namespaceSelector: {}, podSelector: {matchLabels: {a%d: b}}}`)),
			limits{100, 1 << 20, 1 << 20},
			"more than 100 steps",
			false,
		},
		"many addresses": {
			fmt.Sprintf(webOf, `{namespaceSelector: {}}`), limits{1000, room(3, 1), 1 << 20}, "take more than", false,
		},
		"many sets": {
			fmt.Sprintf(strings.Replace(webOf, "[{from: [%s]}]", "[%s]", 1),
				repeat(100, `{from: [{podSelector: {matchLabels: {a%d: b}}}]}`)),
			limits{10000, room(90, 100), 1 << 20},
			"take more than",
			false,
		},
		"many blocks": {
			fmt.Sprintf(webOf, repeat(100, `{ipBlock: {cidr: 10.%d.0.0/17}}`)),
			limits{10000, room(3, 20), 1 << 20},
			"take more than",
			false,
		},
		"many exceptions": {
			fmt.Sprintf(webOf, `{ipBlock: {cidr: 10.0.0.0/8, except: [`+repeat(200, `10.0.%d.0/24`)+`]}}`),
			limits{100, 1 << 20, 1 << 20},
			"more than 100 steps",
			false,
		},
		"many rules": {
			fmt.Sprintf(strings.Replace(webOf, "ingress: [{from: [%s]}]", "ingress: [%s]", 1),
				repeat(100, `{ports: [{port: %d}]}`)),
			limits{10000, room(3, 20), 1 << 20},
			"take more than",
			false,
		},
		"a long list of ports": {
			fmt.Sprintf(strings.Replace(webOf, "ingress: [{from: [%s]}]", "egress: [{ports: [%s]}]", 1),
				repeat(100, `{port: p%d}`)),
			limits{100, 1 << 20, 1 << 20},
			"more than 100 steps",
			false,
		},
		"a long pod selector": {
			`{metadata: {namespace: bank}, spec: {podSelector: {matchExpressions: [{key: a, operator: NotIn, values: [` +
				repeat(900, "v%d") + `]}]}, policyTypes: [Ingress]}}`,
			limits{100, 1 << 20, 1 << 20}, "more than 100 steps", true,
		},
		"all of a node": {
			fmt.Sprintf(webOf, `{namespaceSelector: {}},`+repeat(100, `{ipBlock: {cidr: 10.%d.0.0/17}}`)),
			limits{10000, 1 << 20, room(4, 20)},
			"the pods of node n1",
			false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := world(t, allowDB, c.policy)
			made := compile(w, c.limits, nil)
			rules, over := made.node("n1")
			require.NoError(t, rules.check())
			over = append(over, made.over...)
			require.Len(t, over, 1)
			require.Equal(t, "b", over[0].policy.Name)
			require.Contains(t, over[0].why, c.why)
			require.Len(t, rules.Pods, 2)
			bank, shop := rules.Pods[0], rules.Pods[1]
			require.NotEmpty(t, bank.Ingress)
			require.Empty(t, rules.Chains[bank.Ingress])
			require.Empty(t, rules.Chains[bank.Egress])
			require.Len(t, rules.Chains[shop.Ingress], 1)
			require.Empty(t, shop.Egress)
			require.Len(t, rules.Addresses, 1, "those of shop")
			rules, _ = made.node("n2")
			require.Equal(t, c.db, rules.Pods[0].Ingress != "")

			made = compile(w, usual, nil)
			rules, over = made.node("n1")
			require.Empty(t, append(over, made.over...))
			require.Greater(t, len(rules.Chains), 1)
		})
	}
}

// TestWorkThatIsNotDone checks that rules for all peers inspect no pods and equal selectors are resolved once, so
// that ordinary policies of large clusters stay within the limits.
func TestWorkThatIsNotDone(t *testing.T) {
	w := &cluster{
		namespaces: map[string]labels.Set{"n": nil},
		pods:       map[string]map[string]*pod{"n": {}},
		policies:   map[types.NamespacedName]*networkingv1.NetworkPolicy{},
	}
	for i := range 1000 {
		name := fmt.Sprint(i)
		w.pods["n"][name] = &pod{
			NamespacedName: types.NamespacedName{Namespace: "n", Name: name},
			node:           "n1",
			labels:         labels.Set{"i": name},
			address:        address(10<<24 + uint64(i)),
		}
	}
	p := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"i": "7"}},
		},
	}
	p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	for i := range 200 {
		ports := []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt(1 + i))}}
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{Ports: ports})
		p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{
			Ports: ports, To: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}},
		})
	}
	w.policies[types.NamespacedName{Namespace: "n", Name: "p"}] = p
	made := compile(w, limits{work: 5000, size: 1 << 20, node: 1 << 20}, nil)
	require.Empty(t, made.over)
	rules, _ := made.node("n1")
	require.Len(t, rules.Addresses, 1)
	require.Len(t, rules.Pods, 1000)
	data, err := json.Marshal(struct{ C, A, B, E any }{rules.Chains, rules.Addresses, rules.Blocks, rules.Endpoints})
	require.NoError(t, err)
	require.LessOrEqual(t, len(data), made.size()+100, "sizes are upper limits")
}

// TestSizes checks that the estimated size of elements is never below their encoded size.
func TestSizes(t *testing.T) {
	most := netip.MustParseAddr("255.255.255.255")
	s := newSets()
	for range 100 {
		s.chains["in-0123456789abcdef0123"] = append(s.chains["in-0123456789abcdef0123"], Rule{
			Addresses: "p0123456789abcdef0123",
			Protocol:  132,
			From:      65534,
			To:        65535,
		})
		s.addresses["p"] = append(s.addresses["p"], most)
		s.blocks["b"] = append(s.blocks["b"], Range{most, most})
		s.endpoints["e"] = append(s.endpoints["e"], Destination{132, netip.AddrPortFrom(most, 65535)})
	}
	data, err := json.Marshal([]any{s.chains, s.addresses, s.blocks, s.endpoints})
	require.NoError(t, err)
	require.LessOrEqual(t, len(data), s.size())
}

// TestTenantsAreTold checks the event on a policy that exceeds a limit.
func TestTenantsAreTold(t *testing.T) {
	c := registrytest.Start(t, registrytest.Options{}).As("admin")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r := NewResolver(c, slog.New(slog.DiscardHandler))
	r.limits.work = 10
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(running) }()
	defer func() { stop(); require.NoError(t, <-ended) }()
	watch, err := c.Watch(ctx, &corev1.EventList{})
	require.NoError(t, err)
	defer watch.Stop()
	require.NoError(t, c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}))
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p"}}
	for i := range 20 {
		policy.Spec.Ingress = append(policy.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{
			From: []networkingv1.NetworkPolicyPeer{
				{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": fmt.Sprint(i)}}},
			},
		})
	}
	require.NoError(t, c.Create(ctx, policy))
	event := (<-watch.ResultChan()).Object.(*corev1.Event)
	require.Equal(t, policy.UID, event.InvolvedObject.UID)
	require.Equal(t, corev1.EventTypeWarning, event.Type)
	require.Contains(t, event.Message, "of namespace shop allow nothing")
}

// TestANodeThatAsksTooOften checks that too many requests of a node end its own oldest, and that a request can end
// while it waits for its turn.
func TestANodeThatAsksTooOften(t *testing.T) {
	r := NewResolver(nil, slog.New(slog.DiscardHandler))
	r.publish(nil)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	none := func([]byte) {}
	rules, err := r.Next(ctx, "n1", "")
	require.NoError(t, err)
	errs := make(chan error, 3)
	for range 3 {
		go func() { errs <- r.WriteRules(ctx, "n1", rules.Version, none) }()
	}
	require.True(t, apierrors.IsTooManyRequests(<-errs))
	cancel()
	require.ErrorIs(t, <-errs, context.Canceled)
	require.ErrorIs(t, <-errs, context.Canceled)
	require.Empty(t, r.waiting)
	r.turn <- struct{}{} // another node's rules are being computed
	require.ErrorIs(t, r.WriteRules(ctx, "n2", "", none), context.Canceled)
}

// TestAnswersHaveABudget checks that rules beyond the budget wait until others have been written or their request
// ends.
func TestAnswersHaveABudget(t *testing.T) {
	r := NewResolver(nil, slog.New(slog.DiscardHandler))
	r.publish(nil)
	size := int64(len((&Rules{}).encode()))
	require.True(t, r.budget.TryAcquire(maxAnswers-size))
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, r.WriteRules(ctx, "n1", "", func([]byte) {
		waiting := make(chan error)
		go func() { waiting <- r.WriteRules(ctx, "n2", "", func([]byte) { t.Error("written beyond the budget") }) }()
		cancel()
		require.ErrorIs(t, <-waiting, context.Canceled)
	}))
	require.True(t, r.budget.TryAcquire(size), "what was written is given back")
}
