package ingress

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
)

func in(namespace string, i *networkingv1.Ingress, shares ...string) *networkingv1.Ingress {
	i.Namespace = namespace
	if len(shares) > 0 {
		i.Annotations = map[string]string{annotationShare: strings.Join(shares, ", ")}
	}
	return i
}

// TestHostsBelongToNamespaces: no Ingress takes a part of another namespace's host, by a longer path, an exact host
// beside a wildcard or the reverse, a certificate, rules without a host or the default backend.
func TestHostsBelongToNamespaces(t *testing.T) {
	evil := func(age int) *networkingv1.Ingress {
		return in("evil", ingressOf("i", age,
			"a.example.com Exact /login stolen", "shop.example.com Prefix / stolen", "*.example.org Prefix / stolen",
			"- Prefix /admin stolen", "default stolen", "tls one A.example.com", "tls two *.example.com x.example.net"))
	}
	victim := in("victim", ingressOf("i", 5, "a.example.com Prefix /app a", "*.example.com Prefix /app wild",
		"b.example.org Prefix /app b", "tls three a.example.com"))
	young := build([]*networkingv1.Ingress{evil(1), victim}, named)
	for request, want := range map[string]string{
		"a.example.com /login": "", "a.example.com /app/x": "a", "a.example.com /": "", "a.example.com /admin": "",
		"shop.example.com /": "", "shop.example.com /app": "wild", "b.example.org /app": "b", "b.example.org /": "",
		"c.example.org /": "stolen", // the wildcard has no other owner
		"other /admin":    "stolen", "other /": "stolen",
	} {
		host, path, _ := strings.Cut(request, " ")
		require.Equal(t, want, young.to(host, path), request)
	}
	require.Equal(t, "three.example.com", young.certificate("a.example.com").Leaf.DNSNames[0])
	require.Nil(t, young.certificate("shop.example.com"))
	require.NotNil(t, young.certificate("x.example.net"))
	problem := func(host string) string {
		return `host "` + host + `" belongs to the namespace of the older Ingress victim/i, whose annotation ` +
			`ingress.coracle.dev/share-hosts does not list this namespace`
	}
	require.Equal(t, map[types.NamespacedName][]string{{Namespace: "evil", Name: "i"}: {
		problem("a.example.com"), problem("shop.example.com"), problem("a.example.com"), problem("*.example.com"),
	}}, young.refused)

	// A certificate claims nothing: only a rule does.
	old := in("evil", ingressOf("i", 9, "tls one a.example.com"))
	require.Equal(t, "three.example.com",
		build([]*networkingv1.Ingress{old, victim}, named).certificate("a.example.com").Leaf.DNSNames[0])

	// The first namespace has the rules without a host and the default backend.
	other := build([]*networkingv1.Ingress{
		in("evil", ingressOf("i", 1, "- Prefix /x stolen", "default stolen")),
		in("first", ingressOf("i", 2, "- Prefix /app app")),
	}, named)
	require.Equal(t, []string{"app", "", ""}, []string{other.to("x", "/app"), other.to("x", "/x"), other.to("x", "/")})
	require.Contains(t, other.refused[types.NamespacedName{Namespace: "evil", Name: "i"}][0],
		"the default backend and rules without a host belong to the namespace of the older Ingress first/i")
}

func TestHostsAreShared(t *testing.T) {
	for shares, want := range map[string]string{
		"": "rest", "other": "rest", "other, friend": "friend", "*": "friend",
	} {
		owner := in("owner", ingressOf("i", 5, "*.example.com Prefix /app wild", "default rest"))
		friend := in("friend", ingressOf("i", 1, "a.example.com Prefix /x friend"))
		list := []*networkingv1.Ingress{friend, owner}
		if shares != "" { // any Ingress of the owner with the host will do
			list = append(list, in("owner", ingressOf("share", 1, "*.example.com Prefix /share share"), shares))
		}
		table := build(list, named)
		require.Equal(t, want, table.to("a.example.com", "/x"), shares)
		require.Equal(t, want == "rest", len(table.refused) > 0)
		if want == "friend" {
			require.Empty(t, table.to("a.example.com", "/app"), "the host is the friend's now")
		}
		require.Equal(t, "wild", table.to("b.example.com", "/app"))
		require.Equal(t, "rest", table.to("elsewhere", "/"))
	}
	// A share of a namespace that does not have the host has no effect.
	mine := in("mine", ingressOf("i", 5, "a.example.com Prefix / mine"))
	theirs := in("theirs", ingressOf("i", 4, "a.example.com Prefix /x theirs"), "theirs", "*")
	require.Equal(t, "mine", build([]*networkingv1.Ingress{mine, theirs}, named).to("a.example.com", "/x"))

	// Of the same age, the lower UID is first.
	one, two := in("b", ingressOf("i", 1, "h Prefix / one")), in("a", ingressOf("i", 1, "h Prefix / two"))
	one.UID, two.UID = "1", "2"
	require.Equal(t, "one", build([]*networkingv1.Ingress{two, one}, named).to("h", "/"))
}
