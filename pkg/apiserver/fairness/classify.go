package fairness

import (
	"slices"
	"strings"

	flowcontrol "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// schema is a flow schema with its counters.
type schema struct {
	name       string
	precedence int32
	by         flowcontrol.FlowDistinguisherMethodType
	rules      []flowcontrol.PolicyRulesWithSubjects
	level      *level

	executing, waiting int
	dispatched         uint64
	rejected           map[string]uint64
}

func (c *schema) reject(reason string) error {
	c.rejected[reason]++
	return &Rejected{reason}
}

// Class is the flow schema of a request and its flow in that schema.
type Class struct {
	schema *schema
	flow   string
}

// Schema returns the name of the request's flow schema.
func (c Class) Schema() string { return c.schema.name }

// Level returns the name of the request's priority level.
func (c Class) Level() string { return c.schema.level.name }

// levels returns the priority levels with their shares of the seats, rounded up as upstream does.
func levels(seats int, all []*flowcontrol.PriorityLevelConfiguration) []*level {
	var made []*level
	total := 0
	seen := map[string]bool{}
	for _, c := range all {
		if l := c.Spec.Limited; l != nil && !seen[c.Name] {
			total += int(*l.NominalConcurrencyShares)
		}
		seen[c.Name] = true
	}
	clear(seen)
	for _, c := range all {
		if seen[c.Name] {
			continue
		}
		seen[c.Name] = true
		l := &level{name: c.Name, exempt: c.Spec.Type == flowcontrol.PriorityLevelEnablementExempt, nominal: 1, purgeAt: idleFlows, flows: map[flowKey]*flow{}}
		if s := c.Spec.Limited; s != nil {
			l.queues = s.LimitResponse.Type == flowcontrol.LimitResponseTypeQueue
			l.nominal = (seats*int(*s.NominalConcurrencyShares) + total - 1) / total
			lendable := 0
			if s.LendablePercent != nil {
				lendable = l.nominal * int(*s.LendablePercent) / 100
			}
			l.guaranteed = l.nominal - lendable
		}
		made = append(made, l)
	}
	return made
}

func schemas(byName map[string]*level, all []*flowcontrol.FlowSchema) []*schema {
	var made []*schema
	for _, c := range all {
		if slices.ContainsFunc(made, func(s *schema) bool { return s.name == c.Name }) {
			continue
		}
		s := &schema{name: c.Name, precedence: c.Spec.MatchingPrecedence, rules: c.Spec.Rules,
			level: byName[c.Spec.PriorityLevelConfiguration.Name], rejected: map[string]uint64{}}
		if c.Spec.DistinguisherMethod != nil {
			s.by = c.Spec.DistinguisherMethod.Type
		}
		made = append(made, s)
	}
	slices.SortFunc(made, func(a, b *schema) int {
		if a.precedence != b.precedence {
			return int(a.precedence - b.precedence)
		}
		return strings.Compare(a.name, b.name)
	})
	return made
}

// Classify returns the first matching flow schema by precedence. The last one matches everything.
func (s *Set) Classify(u user.Info, info *request.RequestInfo) Class {
	for _, c := range s.schemas {
		for i := range c.rules {
			if !matches(&c.rules[i], u, info) {
				continue
			}
			switch c.by {
			case flowcontrol.FlowDistinguisherMethodByUserType:
				return Class{c, u.GetName()}
			case flowcontrol.FlowDistinguisherMethodByNamespaceType:
				return Class{c, info.Namespace}
			}
			return Class{c, ""}
		}
	}
	return Class{schema: s.schemas[len(s.schemas)-1], flow: u.GetName()}
}

func matches(r *flowcontrol.PolicyRulesWithSubjects, u user.Info, info *request.RequestInfo) bool {
	if info.IsResourceRequest && len(r.ResourceRules) == 0 || !info.IsResourceRequest && len(r.NonResourceRules) == 0 {
		return false
	}
	subject := false
	for i := range r.Subjects {
		if subject = isSubject(&r.Subjects[i], u); subject {
			break
		}
	}
	if !subject {
		return false
	}
	if info.IsResourceRequest {
		for i := range r.ResourceRules {
			if matchesResource(&r.ResourceRules[i], info) {
				return true
			}
		}
		return false
	}
	for i := range r.NonResourceRules {
		if n := &r.NonResourceRules[i]; contains(n.Verbs, info.Verb) && matchesPath(n.NonResourceURLs, info.Path) {
			return true
		}
	}
	return false
}

func isSubject(s *flowcontrol.Subject, u user.Info) bool {
	switch s.Kind {
	case flowcontrol.SubjectKindUser:
		return s.User.Name == flowcontrol.NameAll || s.User.Name == u.GetName()
	case flowcontrol.SubjectKindGroup:
		return s.Group.Name == flowcontrol.NameAll || slices.Contains(u.GetGroups(), s.Group.Name)
	case flowcontrol.SubjectKindServiceAccount:
		if s.ServiceAccount.Name != flowcontrol.NameAll {
			return serviceaccount.MatchesUsername(s.ServiceAccount.Namespace, s.ServiceAccount.Name, u.GetName())
		}
		rest, account := strings.CutPrefix(u.GetName(), serviceaccount.ServiceAccountUsernamePrefix)
		namespace, _, _ := strings.Cut(rest, ":")
		return account && namespace == s.ServiceAccount.Namespace
	}
	return false
}

func matchesResource(r *flowcontrol.ResourcePolicyRule, info *request.RequestInfo) bool {
	if !contains(r.Verbs, info.Verb) || !contains(r.APIGroups, info.APIGroup) || !slices.ContainsFunc(r.Resources, func(name string) bool {
		if name == flowcontrol.ResourceAll {
			return true
		}
		resource, sub, _ := strings.Cut(name, "/")
		return resource == info.Resource && sub == info.Subresource
	}) {
		return false
	}
	if info.Namespace == "" {
		return r.ClusterScope
	}
	return contains(r.Namespaces, info.Namespace)
}

// contains reports whether a list has the value or "*", which is the wildcard of verbs, groups and namespaces alike.
func contains(list []string, value string) bool {
	return slices.Contains(list, value) || len(list) == 1 && list[0] == "*"
}

func matchesPath(paths []string, path string) bool {
	for _, p := range paths {
		if p == flowcontrol.NonResourceAll || p == path {
			return true
		}
		p = strings.TrimSuffix(strings.TrimSuffix(p, "*"), "/")
		if rest, ok := strings.CutPrefix(path, p); ok && strings.HasPrefix(rest, "/") {
			return true
		}
	}
	return false
}
