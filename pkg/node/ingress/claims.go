package ingress

import (
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
)

// annotationShare lists namespaces, separated by commas, whose Ingresses may use the hosts of this one; "*" is all.
const annotationShare = "ingress.coracle.dev/share-hosts"

// claims are the namespaces that hosts belong to: the namespace of the oldest Ingress with a rule for the host, or with
// a wildcard for it. The host "" is the rules without a host and the default backend, which serve only names that no
// namespace has. Ingresses of other namespaces are not served for a host unless its namespace shares it.
type claims struct {
	first  map[string]types.NamespacedName // the Ingress that claimed each host
	shares map[share][][]string            // lists of namespaces
}

// share is a host of a namespace.
type share struct{ host, namespace string }

// claim returns the claims of Ingresses, which are sorted by age.
func claim(ingresses []*networkingv1.Ingress) claims {
	c := claims{map[string]types.NamespacedName{}, map[share][][]string{}}
	for _, i := range ingresses {
		list := i.Annotations[annotationShare]
		if list == "" {
			continue
		}
		with := strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
		slices.Sort(with)
		for _, host := range hostsOf(i) {
			key := share{host, i.Namespace}
			c.shares[key] = append(c.shares[key], with)
		}
	}
	for _, i := range ingresses {
		for _, host := range hostsOf(i) {
			if _, taken := c.first[host]; !taken && c.may(host, i.Namespace) {
				c.first[host] = types.NamespacedName{Namespace: i.Namespace, Name: i.Name}
			}
		}
	}
	return c
}

// hostsOf returns the hosts of an Ingress's rules, and "" for a default backend.
func hostsOf(i *networkingv1.Ingress) []string {
	hosts := make([]string, 0, len(i.Spec.Rules)+1)
	for _, rule := range i.Spec.Rules {
		hosts = append(hosts, strings.ToLower(rule.Host))
	}
	if i.Spec.DefaultBackend != nil {
		hosts = append(hosts, "")
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// owner returns the claimed host that covers a name, itself or a wildcard, and the Ingress that claimed it.
func (c claims) owner(name string) (host string, i types.NamespacedName, ok bool) {
	if i, ok = c.first[name]; ok {
		return name, i, true
	}
	if _, suffix, below := strings.Cut(name, "."); below {
		host = "*." + suffix
		i, ok = c.first[host]
	}
	return host, i, ok
}

// may reports whether Ingresses of a namespace may serve a name.
func (c claims) may(name, namespace string) bool {
	host, i, ok := c.owner(name)
	if !ok || i.Namespace == namespace {
		return true
	}
	for _, with := range c.shares[share{host, i.Namespace}] {
		_, listed := slices.BinarySearch(with, namespace)
		if listed || len(with) > 0 && with[0] == "*" {
			return true
		}
	}
	return false
}
