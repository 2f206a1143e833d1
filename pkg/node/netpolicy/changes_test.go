package netpolicy

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"
)

// TestCompilingChanges checks that results that are taken from an earlier compilation are as if they were new, however
// the cluster changes, and that they are taken while other namespaces change.
func TestCompilingChanges(t *testing.T) {
	var policies []*networkingv1.NetworkPolicy
	for _, text := range []string{
		`{spec: {podSelector: {}, policyTypes: [Ingress, Egress]}}`,
		`{spec: {podSelector: {matchLabels: {app: a}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: b, x: "1"}}}]}]}}`,
		`{spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {matchLabels: {team: a}}, podSelector: {matchLabels: {app: a}}}]}]}}`,
		`{spec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchExpressions: [{key: team, operator: DoesNotExist}]}}]}]}}`,
		`{spec: {podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: main}]}]}}`,
		`{spec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]}]}}`,
	} {
		p := &networkingv1.NetworkPolicy{}
		require.NoError(t, yaml.UnmarshalStrict([]byte(text), p))
		policies = append(policies, p)
	}
	namespaces := []string{"shop", "bank", "mill"}
	rapid.Check(t, func(t *rapid.T) {
		c := (&cluster{}).clone()
		c.policies, c.namespaces = map[types.NamespacedName]*networkingv1.NetworkPolicy{}, map[string]labels.Set{}
		small := limits{work: rapid.IntRange(3, 60).Draw(t, "work"), size: 1 << 20, node: 1 << 20}
		var before *compiled
		for i := range rapid.IntRange(1, 15).Draw(t, "steps") {
			namespace := rapid.SampledFrom(namespaces).Draw(t, "namespace")
			name := types.NamespacedName{Namespace: namespace, Name: fmt.Sprint(rapid.IntRange(0, 2).Draw(t, "name"))}
			gone := rapid.IntRange(0, 3).Draw(t, "gone") == 0
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				if delete(c.policies, name); !gone {
					p := rapid.SampledFrom(policies).Draw(t, "policy").DeepCopy()
					p.Namespace, p.Name = name.Namespace, name.Name
					c.policies[name] = p
				}
			case 1:
				if delete(c.namespaces, namespace); !gone {
					c.namespaces[namespace] = labels.Set{"team": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "team")}
				} else {
					c.namespaces[namespace] = nil
				}
			default:
				if c.pods[namespace] == nil {
					c.pods[namespace] = map[string]*pod{}
				}
				if delete(c.pods[namespace], name.Name); !gone {
					c.pods[namespace][name.Name] = &pod{
						NamespacedName: name, uid: types.UID(fmt.Sprint(name)), node: "n1", address: address(10<<24 + uint64(i)),
						labels: labels.Set{"app": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "app"), "x": "1"},
						ports:  []namedPort{{"main", 6, uint16(i)}},
					}
				}
			}
			made, fresh := compile(c.clone(), small, before), compile(c.clone(), small, nil)
			rules, _ := made.node("n1")
			want, _ := fresh.node("n1")
			require.Equal(t, string(want.encode()), string(rules.encode()))
			require.Equal(t, len(fresh.over), len(made.over))
			if before != nil && len(c.policies) > 0 {
				again := compile(c.clone(), small, made)
				for namespace, result := range made.tenants {
					require.Same(t, result, again.tenants[namespace], "nothing has changed")
				}
			}
			before = made
		}
	})
}

// BenchmarkChange compiles the policies after one pod of one of 50 namespaces has changed. Each namespace has 20 pods
// and a policy with 100 peers: blocks with 100 exceptions, or selectors of pods in all namespaces.
func BenchmarkChange(b *testing.B) {
	for name, peer := range map[string]func(i int) networkingv1.NetworkPolicyPeer{
		"blocks": func(i int) networkingv1.NetworkPolicyPeer {
			block := &networkingv1.IPBlock{CIDR: fmt.Sprintf("%d.0.0.0/8", 11+i)}
			for j := range 100 {
				block.Except = append(block.Except, fmt.Sprintf("%d.%d.0.0/24", 11+i, 2*j))
			}
			return networkingv1.NetworkPolicyPeer{IPBlock: block}
		},
		"selectors": func(i int) networkingv1.NetworkPolicyPeer {
			return networkingv1.NetworkPolicyPeer{
				NamespaceSelector: &metav1.LabelSelector{},
				PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint(i)}},
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			c := &cluster{
				policies: map[types.NamespacedName]*networkingv1.NetworkPolicy{}, namespaces: map[string]labels.Set{},
				pods: map[string]map[string]*pod{},
			}
			for n := range 50 {
				namespace := fmt.Sprint("n", n)
				c.namespaces[namespace], c.pods[namespace] = labels.Set{}, map[string]*pod{}
				p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p"}}
				p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
				p.Spec.Ingress = make([]networkingv1.NetworkPolicyIngressRule, 1)
				for i := range 100 {
					p.Spec.Ingress[0].From = append(p.Spec.Ingress[0].From, peer(i))
				}
				c.policies[types.NamespacedName{Namespace: namespace, Name: "p"}] = p
				for i := range 20 {
					name := types.NamespacedName{Namespace: namespace, Name: fmt.Sprint(i)}
					c.pods[namespace][name.Name] = &pod{
						NamespacedName: name, node: "n1", labels: labels.Set{"app": fmt.Sprint(i)},
						address: address(10<<24 + uint64(20*n+i)),
					}
				}
			}
			made := compile(c.clone(), usual, nil)
			for b.Loop() {
				changed := *c.pods["n7"]["1"]
				c.pods["n7"]["1"] = &changed
				made = compile(c.clone(), usual, made)
			}
		})
	}
}
