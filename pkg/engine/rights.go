package engine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Rights returns the RBAC rules for what a reconciler declares, and for its events. They do not include Further.
func (r *Reconciler) Rights(scheme *runtime.Scheme) ([]rbacv1.PolicyRule, error) {
	d, err := declare(r, scheme)
	if err != nil {
		return nil, err
	}
	if d.every || len(d.any) > 0 {
		return nil, fmt.Errorf("reconciler %s declares all kinds: no list of rules covers them", r.Name)
	}
	rules := []rbacv1.PolicyRule{rule("", "events", "create", "patch", "update")}
	for gk := range d.reads {
		rules = append(rules, rule(gk.Group, plural(gk), "get", "list", "watch"))
	}
	creates := false
	reconciled, err := d.kind(r.Watches[0].Object)
	if err != nil {
		return nil, err
	}
	for gk, parts := range d.writes {
		creates = creates || gk != reconciled && slices.Contains(parts, Create)
		for _, p := range parts {
			switch p {
			case Create, Delete:
				rules = append(rules, rule(gk.Group, plural(gk), string(p)))
			case Status:
				rules = append(rules, rule(gk.Group, plural(gk)+"/status", "patch", "update"))
			default:
				rules = append(rules, rule(gk.Group, plural(gk), "patch", "update"))
			}
		}
	}
	if creates { // a controller reference blocks the deletion of the owner, which needs this right
		rules = append(rules, rule(reconciled.Group, plural(reconciled)+"/finalizers", "update"))
	}
	return Merge(rules), nil
}

func rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

func plural(gk schema.GroupKind) string {
	resource, _ := meta.UnsafeGuessKindToResource(gk.WithVersion("v1"))
	return resource.Resource
}

// Merge merges rules: one rule has all resources of a group that need the same verbs. Rules with resource names or
// non-resource URLs follow unchanged.
func Merge(rules []rbacv1.PolicyRule) (list []rbacv1.PolicyRule) {
	type resource struct{ group, name string }
	verbs := map[resource]map[string]bool{}
	var others []rbacv1.PolicyRule
	for _, r := range rules {
		if len(r.ResourceNames) > 0 || len(r.NonResourceURLs) > 0 {
			others = append(others, r)
			continue
		}
		for _, group := range r.APIGroups {
			for _, name := range r.Resources {
				at := resource{group, name}
				if verbs[at] == nil {
					verbs[at] = map[string]bool{}
				}
				for _, v := range r.Verbs {
					verbs[at][v] = true
				}
			}
		}
	}
	order := slices.SortedFunc(maps.Keys(verbs), func(a, b resource) int {
		return cmp.Or(strings.Compare(a.group, b.group), strings.Compare(a.name, b.name))
	})
	for _, at := range order {
		needs := slices.Sorted(maps.Keys(verbs[at]))
		i := slices.IndexFunc(list, func(r rbacv1.PolicyRule) bool {
			return r.APIGroups[0] == at.group && slices.Equal(r.Verbs, needs)
		})
		if i < 0 {
			list = append(list, rbacv1.PolicyRule{APIGroups: []string{at.group}, Verbs: needs})
			i = len(list) - 1
		}
		list[i].Resources = append(list[i].Resources, at.name)
	}
	return append(list, others...)
}
