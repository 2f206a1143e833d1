package customresources

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coracle-dev/coracle/pkg/api/kinds/custom"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// names holds the names of built-in kinds and definitions by group. It is safe for concurrent use. A call takes time
// for the names of one definition and for the definitions that wait for names.
type names struct {
	builtin map[schema.GroupResource]bool

	mu     sync.Mutex
	groups map[string]*group
}

type group struct {
	held custom.Names
	// claims has each definition's part of held: the names in its status and, until the status is written, its newly
	// accepted names.
	claims map[string][]apiextensionsv1.CustomResourceDefinitionNames
	// waiting has the definitions that want a name in use. Names of built-in kinds are never released.
	waiting map[string]bool
}

func newNames(builtin []*kind.Resource) *names {
	n := &names{builtin: map[schema.GroupResource]bool{}, groups: map[string]*group{}}
	for _, r := range builtin {
		n.builtin[r.GR()] = true
		n.group(r.Group).held.Add(apiextensionsv1.CustomResourceDefinitionNames{
			Plural: r.Plural, Singular: r.Singular, ShortNames: r.ShortNames, Kind: r.Kind, ListKind: r.ListGVK().Kind})
	}
	return n
}

// isBuiltin reports whether a definition's kind is built in. An earlier version of the server may have served the
// definition.
func (n *names) isBuiltin(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return n.builtin[schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}]
}

// group returns a group and creates it if necessary. The caller holds mu, except for newNames.
func (n *names) group(name string) *group {
	g := n.groups[name]
	if g == nil {
		g = &group{claims: map[string][]apiextensionsv1.CustomResourceDefinitionNames{}, waiting: map[string]bool{}}
		n.groups[name] = g
	}
	return g
}

// claim replaces a definition's names and reports whether it released any.
func (g *group) claim(name string, now ...apiextensionsv1.CustomResourceDefinitionNames) (released bool) {
	for _, was := range g.claims[name] {
		g.held.Remove(was)
		same := func(is apiextensionsv1.CustomResourceDefinitionNames) bool { return custom.SameNames(was, is) }
		released = released || !slices.ContainsFunc(now, same) && !same(apiextensionsv1.CustomResourceDefinitionNames{})
	}
	for _, is := range now {
		g.held.Add(is)
	}
	if len(now) == 0 {
		delete(g.claims, name)
	} else {
		g.claims[name] = now
	}
	return released
}

// accept calls custom.Accept and reserves the accepted names. If several definitions want a name at the same time,
// any of them may get it. It also returns the definitions to retry because crd released names that it was given
// earlier, in a status that could not be written.
func (n *names) accept(crd *apiextensionsv1.CustomResourceDefinition) (served bool, retry []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	g, stored := n.group(crd.Spec.Group), *crd.Status.AcceptedNames.DeepCopy()
	if g.claim(crd.Name, stored) {
		retry = slices.Collect(maps.Keys(g.waiting))
	}
	served = custom.Accept(crd, g.held)
	g.claim(crd.Name, stored, *crd.Status.AcceptedNames.DeepCopy())
	g.wait(crd)
	return served, retry
}

func (g *group) wait(crd *apiextensionsv1.CustomResourceDefinition) {
	if apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) {
		delete(g.waiting, crd.Name)
	} else {
		g.waiting[crd.Name] = true
	}
}

// written records that a definition's status is stored. It returns the definitions to retry because crd released
// names.
func (n *names) written(crd *apiextensionsv1.CustomResourceDefinition) (retry []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	g := n.group(crd.Spec.Group)
	g.wait(crd)
	if g.claim(crd.Name, *crd.Status.AcceptedNames.DeepCopy()) {
		retry = slices.Collect(maps.Keys(g.waiting))
	}
	return retry
}

// gone removes a definition. It returns the definitions to retry.
func (n *names) gone(name string) (retry []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, in, _ := strings.Cut(name, ".") // a definition's name is its plural and its group
	g := n.groups[in]
	if g == nil {
		return nil
	}
	delete(g.waiting, name)
	if g.claim(name) {
		retry = slices.Collect(maps.Keys(g.waiting))
	}
	if g.held.Empty() && len(g.waiting) == 0 {
		delete(n.groups, in)
	}
	return retry
}
