package builtin

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

// rights returns the rules of a kind's roles.
type rights func() (controller, edit, view []rbacv1.PolicyRule)

// KontrolRights returns what Kontrol's reconcilers need on another API server than ours that has its kinds: nothing of the clusters that Resources
// are for, which they reach with the credentials of those.
func KontrolRights() []rbacv1.PolicyRule {
	return together(kontrol.ClusterRights, kontrol.ResourceRights, kontrol.StateRights, kontrol.CurrentRights, kontrol.BundleRights)
}

// BuildbarnRights returns what the reconcilers of Buildbarn's kinds need on another API server than ours.
func BuildbarnRights() []rbacv1.PolicyRule {
	return together(buildbarn.SchedulerRights, buildbarn.WorkerRights, buildbarn.StorageRights, buildbarn.FrontendRights, buildbarn.BrowserRights, buildbarn.FarmRights)
}

// together returns the rules of several controllers in order, with one rule for all resources of a group that need the same verbs. Rules that are limited
// to names, or that are about paths, follow as they are.
func together(all ...rights) (list []rbacv1.PolicyRule) {
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
		i := slices.IndexFunc(list, func(r rbacv1.PolicyRule) bool { return r.APIGroups[0] == at.group && slices.Equal(r.Verbs, needs) })
		if i < 0 {
			list = append(list, rbacv1.PolicyRule{APIGroups: []string{at.group}, Verbs: needs})
			i = len(list) - 1
		}
		list[i].Resources = append(list[i].Resources, at.name)
	}
	return append(list, others...)
}
