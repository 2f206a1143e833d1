package netpolicy

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/coracle-dev/coracle/pkg/node/pod/static"
)

type typesUID = types.UID

func metaWith(key, value string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Annotations: map[string]string{key: value}}
}

// world returns two namespaces with pods on two nodes, and policies.
func world(t *testing.T, policies ...string) *cluster {
	c := &cluster{policies: map[types.NamespacedName]*networkingv1.NetworkPolicy{}, pods: map[string]map[string]*pod{},
		namespaces: map[string]labels.Set{"shop": {"team": "a"}, "bank": {"team": "b"}}}
	for i, p := range []struct {
		namespace, name, node, app string
		port                       int32
	}{{
		"shop", "web", "n1", "web", 8080,
	}, {"shop", "db", "n2", "db", 5432}, {"bank", "web", "n1", "web", 9090}, {"bank", "db", "n2", "db", 5432}} {
		o := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: p.namespace,
				Name:      p.name,
				UID:       types.UID(p.namespace + p.name),
				Labels:    map[string]string{"app": p.app},
			},
			Spec: corev1.PodSpec{
				NodeName: p.node,
				Containers: []corev1.Container{
					{Ports: []corev1.ContainerPort{{Name: "main", ContainerPort: p.port, Protocol: corev1.ProtocolTCP}}},
				},
			},
			Status: corev1.PodStatus{PodIP: address(uint64(number(netip.MustParseAddr("10.42.0.1"))) + uint64(i)).String()},
		}
		if c.pods[p.namespace] == nil {
			c.pods[p.namespace] = map[string]*pod{}
		}
		c.pods[p.namespace][p.name] = podOf(o)
	}
	for i, text := range policies {
		p := &networkingv1.NetworkPolicy{}
		require.NoError(t, yaml.UnmarshalStrict([]byte(text), p))
		p.Name = string(rune('a' + i))
		c.policies[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] = p
	}
	return c
}

// allows reports whether a pod's rules allow a connection with a peer, as in the kernel.
func (r *Rules) allows(chain string, peer, destination netip.Addr, protocol byte, port uint16) bool {
	if chain == "" {
		return true
	}
	for _, rule := range r.Chains[chain] {
		peers := rule.Addresses == "" && rule.Blocks == "" && rule.Endpoints == ""
		for _, a := range r.Addresses[rule.Addresses] {
			peers = peers || a == peer
		}
		for _, b := range r.Blocks[rule.Blocks] {
			peers = peers || b.From.Compare(peer) <= 0 && peer.Compare(b.To) <= 0
		}
		for _, e := range r.Endpoints[rule.Endpoints] {
			peers = peers || e.Protocol == protocol && e.Address == netip.AddrPortFrom(destination, port)
		}
		if peers && (rule.Protocol == 0 || rule.Protocol == protocol && rule.From <= port && port <= rule.To) {
			return true
		}
	}
	return false
}

// connects reports whether one pod may connect to another, or to an address outside.
func connects(c *cluster, from, to *pod, protocol byte, port uint16) bool {
	made := compile(c, usual, nil)
	ok := true
	for _, end := range []struct{ pod, peer *pod }{{from, to}, {to, from}} {
		if end.pod.node == "" {
			continue
		}
		rules, _ := made.node(end.pod.node)
		at := rules.Pods[slices.IndexFunc(rules.Pods, func(p Pod) bool { return p.UID == end.pod.uid })]
		chain := at.Egress
		if end.pod == to {
			chain = at.Ingress
		}
		ok = ok && rules.allows(chain, end.peer.address, to.address, protocol, port) && rules.check() == nil
	}
	return ok
}

func TestPoliciesMeanWhatUpstreamSays(t *testing.T) {
	outside := &pod{address: netip.MustParseAddr("203.0.113.7")}
	const tcp, udp = unix.IPPROTO_TCP, unix.IPPROTO_UDP
	type try struct {
		from, to string
		protocol byte
		port     uint16
		ok       bool
	}
	for name, c := range map[string]struct {
		policies []string
		tries    []try
	}{
		"no policy": {nil, []try{{"shop/web", "bank/db", tcp, 1, true}}},
		"deny all ingress": {
			[]string{`{metadata: {namespace: shop}, spec: {podSelector: {}, policyTypes: [Ingress]}}`}, []try{
				{"shop/web", "shop/db", tcp, 5432, false}, {"bank/web", "shop/db", udp, 53, false},
				{"shop/web", "bank/db", tcp, 5432, true}, {"outside", "shop/web", tcp, 80, false}},
		},
		"deny all egress": {
			[]string{`{metadata: {namespace: shop}, spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Egress]}}`},
			[]try{
				{"shop/web", "shop/db", tcp, 5432, false}, {"shop/web", "outside", tcp, 443, false},
				{"shop/db", "shop/web", tcp, 1, true}},
		},
		"allow everything": {
			[]string{`{metadata: {namespace: shop}, spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{}]}}`}, []try{
				{"bank/web", "shop/db", udp, 9, true}, {"outside", "shop/db", tcp, 9, true}},
		},
		"policies add up": {[]string{`{metadata: {namespace: shop}, spec: {podSelector: {}, policyTypes: [Ingress]}}`,
			`{metadata: {namespace: shop}, spec: {podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 5432}]}]}}`}, []try{
			{"shop/web", "shop/db", tcp, 5432, true}, {"shop/web", "shop/db", udp, 5432, false},
			{"shop/web", "shop/db", tcp, 5433, false}, {"bank/web", "shop/db", tcp, 5432, false},
			{"shop/db", "shop/web", tcp, 80, false}}},
		"a namespace": {
			[]string{
				`{metadata: {namespace: shop}, spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {matchLabels: {team: b}}}]}]}}`,
			}, []try{
				{"bank/db", "shop/web", tcp, 7, true}, {"shop/db", "shop/web", tcp, 7, false}},
		},
		"pods of a namespace": {
			[]string{
				`{metadata: {namespace: shop}, spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {matchLabels: {team: b}}, podSelector: {matchLabels: {app: web}}}]}]}}`,
			}, []try{
				{"bank/web", "shop/web", tcp, 7, true}, {"bank/db", "shop/web", tcp, 7, false}},
		},
		"a peer that selects nothing": {
			[]string{
				`{metadata: {namespace: shop}, spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: none}}}]}]}}`,
			}, []try{
				{"shop/web", "shop/db", tcp, 7, false}},
		},
		"a block with an exception": {
			[]string{
				`{metadata: {namespace: shop}, spec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [203.0.113.0/29, 203.0.113.128/25]}}]}]}}`,
			}, []try{
				{"shop/web", "outside", tcp, 443, false}, {"shop/web", "bank/db", tcp, 443, true}},
		},
		"a block of IPv6 alone": {
			[]string{
				`{metadata: {namespace: shop}, spec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: "2001:db8::/32"}}]}]}}`,
			}, []try{
				{"shop/web", "outside", tcp, 443, false}},
		},
		"a range of ports": {
			[]string{
				`{metadata: {namespace: shop}, spec: {podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: 80, endPort: 90, protocol: UDP}]}]}}`,
			}, []try{
				{"shop/web", "outside", udp, 80, true}, {"shop/web", "outside", udp, 90, true},
				{"shop/web", "outside", udp, 91, false}, {"shop/web", "outside", tcp, 85, false}},
		},
		"a protocol": {
			[]string{
				`{metadata: {namespace: shop}, spec: {podSelector: {}, policyTypes: [Egress], egress: [{ports: [{protocol: UDP}]}]}}`,
			}, []try{
				{"shop/web", "outside", udp, 1, true}, {"shop/web", "outside", tcp, 1, false}},
		},
		"named ports in": {
			[]string{
				`{metadata: {namespace: shop}, spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{ports: [{port: main}]}]}}`,
			}, []try{
				{"bank/web", "shop/web", tcp, 8080, true}, {"bank/web", "shop/web", tcp, 5432, false},
				{"bank/web", "shop/db", tcp, 5432, true}},
		},
		"named ports out": {
			[]string{
				`{metadata: {namespace: shop}, spec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {team: b}}}], ports: [{port: main}, {port: 53, protocol: UDP}]}]}}`,
			}, []try{
				{"shop/web", "bank/web", tcp, 9090, true}, {"shop/web", "bank/db", tcp, 9090, false},
				{"shop/web", "bank/db", tcp, 5432, true}, {"shop/web", "shop/db", tcp, 5432, false},
				{"shop/web", "bank/db", udp, 53, true}},
		},
		"named ports out to all": {
			[]string{
				`{metadata: {namespace: shop}, spec: {podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: main}]}]}}`,
			}, []try{
				{"shop/web", "bank/web", tcp, 9090, true}, {"shop/web", "bank/web", tcp, 9091, false}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := world(t, c.policies...)
			find := func(name string) *pod {
				for namespace, pods := range w.pods {
					for n, p := range pods {
						if namespace+"/"+n == name {
							return p
						}
					}
				}
				return outside
			}
			for _, try := range c.tries {
				require.Equal(t, try.ok, connects(w, find(try.from), find(try.to), try.protocol, try.port), "%+v", try)
			}
		})
	}
}

func TestPodsThatMatter(t *testing.T) {
	p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}}
	require.NotNil(t, podOf(p))
	for _, change := range []func(*corev1.Pod){
		func(p *corev1.Pod) { p.Spec.NodeName = "" }, func(p *corev1.Pod) { p.Spec.HostNetwork = true },
		func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
		func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
	} {
		other := p.DeepCopy()
		change(other)
		require.Nil(t, podOf(other))
	}
	mirror := p.DeepCopy()
	mirror.UID, mirror.Annotations = "api", map[string]string{corev1.MirrorPodAnnotationKey: "another pod's"}
	own := p.DeepCopy()
	own.UID, own.Annotations = "of the manifest", map[string]string{"kubernetes.io/config.source": "file"}
	require.Equal(t, identity(own, static.IsStatic(own)), podOf(mirror).uid,
		"the node knows a static pod as the servers know its mirror")
	require.NotContains(t, podOf(mirror).uid, "another pod's")
	require.Equal(t, own.UID, podOf(own).uid, "a pod of the API that pretends to be static")
}

// TestVersions checks that equal clusters have equal versions, regardless of map order, and that other addresses
// change the version.
func TestVersions(t *testing.T) {
	policy := `{metadata: {namespace: shop}, spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {}}]}]}}`
	version := func(c *cluster) string {
		rules, _ := compile(c, usual, nil).node("n1")
		return sealed(rules).Version
	}
	first := version(world(t, policy))
	for range 20 {
		require.Equal(t, first, version(world(t, policy)))
	}
	other := world(t, policy)
	other.pods["bank"]["db"].address = netip.MustParseAddr("10.42.9.9")
	require.NotEqual(t, first, version(other))
}

func TestRulesThatAreRefused(t *testing.T) {
	for name, r := range map[string]Rules{
		"a set that is not there":   {Chains: map[string][]Rule{"in-1": {{Addresses: "p"}}}},
		"a chain that is not there": {Pods: []Pod{{Ingress: "in-1"}}},
		"a chain of another name":   {Chains: map[string][]Rule{"forward": {}}},
		"IPv6":                      {Addresses: map[string][]netip.Addr{"p": {netip.MustParseAddr("::1")}}},
		"no address":                {Endpoints: map[string][]Destination{"e": {{}}}},
		"ranges that overlap":       {Blocks: map[string][]Range{"b": {{address(1), address(9)}, {address(5), address(12)}}}},
		"a range that ends first":   {Blocks: map[string][]Range{"b": {{address(9), address(1)}}}},
	} {
		require.Error(t, r.check(), name)
	}
}

func TestBlocks(t *testing.T) {
	ranges := func(cidr string, except ...string) []Range {
		return rangesOf(&networkingv1.IPBlock{CIDR: cidr, Except: except})
	}
	r := func(from, to string) Range { return Range{netip.MustParseAddr(from), netip.MustParseAddr(to)} }
	require.Equal(t, []Range{r("0.0.0.0", "255.255.255.255")}, ranges("0.0.0.0/0"))
	require.Equal(t, []Range{r("10.0.0.0", "10.0.0.255")}, ranges("10.0.0.7/24"))
	require.Equal(t, []Range{r("10.0.0.1", "10.0.0.127"), r("10.0.0.192", "10.0.0.254")},
		ranges("10.0.0.0/24", "10.0.0.255/32", "10.0.0.128/26", "10.0.0.0/32", "10.0.0.160/27"))
	require.Empty(t, ranges("10.0.0.0/24", "10.0.0.0/25", "10.0.0.128/25"))
	require.Equal(t, []Range{r("0.0.0.0", "127.255.255.255")}, ranges("0.0.0.0/0", "128.0.0.0/1"))
	// Stored policies may have what upstream validates no more; an exception must not get lost.
	require.Equal(t, []Range{r("10.0.0.0", "10.0.0.127")}, ranges("010.0.0.0/24", "10.0.0.128/025"))
	require.Equal(t, []Range{r("10.0.0.0", "10.0.0.127")}, ranges("10.0.0.0/24", "::ffff:10.0.0.128/121"))
	require.Empty(t, ranges("::/0", "::ffff:10.0.0.0/104"))
	require.Equal(t, portRange{protocol: unix.IPPROTO_SCTP, from: 1, to: 9},
		rangeOf(networkingv1.NetworkPolicyPort{
			Protocol: new(corev1.ProtocolSCTP),
			Port:     new(intstr.FromInt32(1)),
			EndPort:  new(int32(9)),
		}))
}
