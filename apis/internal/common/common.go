// Package common has what the groups of kinds under apis have in common: rules of roles, and cells of tables.
//
// Its invariant: it knows no kind.
package common

import (
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// Rule returns a rule about one resource, which may be a subresource.
func Rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

// Age returns the time since t as kubectl get shows it.
func Age(t, now time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(t))
}
