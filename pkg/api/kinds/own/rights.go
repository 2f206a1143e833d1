package own

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// Together merges the rules of several controllers, in order: one rule has all resources of a group that need the
// same verbs. Rules with resource names or non-resource URLs follow unchanged.
func Together(all ...Rights) (list []rbacv1.PolicyRule) {
	type resource struct{ group, name string }
	verbs := map[resource]map[string]bool{}
	var others []rbacv1.PolicyRule
	for _, of := range all {
		rules, _, _ := of()
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
