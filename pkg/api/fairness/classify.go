package fairness

import (
	"net/http"
	"slices"
	"strings"

	flowcontrol "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// schema is a configured flow schema. It is immutable except for its counters.
type schema struct {
	*counters
	precedence int32
	by         flowcontrol.FlowDistinguisherMethodType
	rules      []flowcontrol.PolicyRulesWithSubjects
	level      *level
	// uid and levelUID are the response headers' values: the UIDs of the flow schema and of its priority level. Nil
	// if they are not stored objects.
	uid, levelUID []string
}

// counters counts the requests of a flow schema, by name and over all its configurations.
type counters struct {
	name               string
	executing, waiting int
	dispatched         uint64
	rejected           map[string]uint64
}

func (c *counters) reject(reason string) error {
	c.rejected[reason]++
	return &Rejected{reason}
}

// Class is a request's flow schema and its flow in that schema.
type Class struct {
	schema *schema
	flow   string
}

// Schema returns the name of the request's flow schema.
func (c Class) Schema() string { return c.schema.name }

// Level returns the name of the request's priority level.
func (c Class) Level() string { return c.schema.level.name }

// Upstream's response headers with the UIDs of the request's FlowSchema and PriorityLevelConfiguration.
const (
	schemaHeader = "X-Kubernetes-Pf-Flowschema-Uid"
	levelHeader  = "X-Kubernetes-Pf-Prioritylevel-Uid"
)

// WriteHeader adds the headers with the UIDs of the request's FlowSchema and PriorityLevelConfiguration, unless
// these are built in.
func (c Class) WriteHeader(h http.Header) {
	if c.schema != nil && c.schema.uid != nil {
		h[schemaHeader], h[levelHeader] = c.schema.uid, c.schema.levelUID
	}
}

// Classify returns the first matching flow schema by precedence, or else catch-all.
func (s *Set) Classify(u user.Info, info *request.RequestInfo) Class {
	all := s.schemas.Load()
	for _, c := range all.schemas {
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
	return Class{schema: all.catchAll, flow: u.GetName()}
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
	if !contains(r.Verbs, info.Verb) || !contains(r.APIGroups, info.APIGroup) ||
		!slices.ContainsFunc(r.Resources, func(name string) bool {
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

// contains reports whether a list has the value or only "*", the wildcard of verbs, groups and namespaces.
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
