package builtin

import (
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// reviews returns the rows of the kinds that are created but never stored, such as TokenReview: the response has the
// status. A Binding binds its pod.
func reviews() []*kind.Resource {
	authn, authz := authenticationv1.SchemeGroupVersion, authorizationv1.SchemeGroupVersion
	cluster := func(gvk schema.GroupVersionKind, object func() client.Object) *kind.Resource {
		singular := strings.ToLower(gvk.Kind)
		return &kind.Resource{
			GroupVersionKind: gvk, Plural: singular + "s", Singular: singular, Verbs: createVerbs, New: object,
			Proto: true, Computed: true,
		}
	}
	namespaced := func(gvk schema.GroupVersionKind, object func() client.Object) *kind.Resource {
		r := cluster(gvk, object)
		r.Namespaced = true
		return r
	}
	return []*kind.Resource{
		namespaced(gv("", "v1").WithKind("Binding"), func() client.Object { return &corev1.Binding{} }),
		cluster(authn.WithKind("SelfSubjectReview"), func() client.Object { return &authenticationv1.SelfSubjectReview{} }),
		cluster(authn.WithKind("TokenReview"), func() client.Object { return &authenticationv1.TokenReview{} }),
		namespaced(authz.WithKind("LocalSubjectAccessReview"), func() client.Object {
			return &authorizationv1.LocalSubjectAccessReview{}
		}),
		cluster(authz.WithKind("SelfSubjectAccessReview"), func() client.Object {
			return &authorizationv1.SelfSubjectAccessReview{}
		}),
		cluster(authz.WithKind("SelfSubjectRulesReview"), func() client.Object {
			return &authorizationv1.SelfSubjectRulesReview{}
		}),
		cluster(authz.WithKind("SubjectAccessReview"), func() client.Object {
			return &authorizationv1.SubjectAccessReview{}
		}),
	}
}
