package builtin

import (
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Review is a kind that is created but never stored, such as a TokenReview: the response has its status. A Binding does
// what the subresource of its pod does.
type Review struct {
	schema.GroupVersionKind
	Plural, Singular string
	Namespaced       bool
	New              func() runtime.Object
}

// GVR returns the review's group, version and plural name.
func (r *Review) GVR() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Plural}
}

// Reviews returns the kinds that are created but never stored. Their only verb is create.
func Reviews() []Review {
	authn, authz := authenticationv1.SchemeGroupVersion, authorizationv1.SchemeGroupVersion
	return []Review{
		{
			corev1.SchemeGroupVersion.WithKind("Binding"), "bindings", "binding", true,
			func() runtime.Object { return &corev1.Binding{} },
		},
		{
			authn.WithKind("SelfSubjectReview"), "selfsubjectreviews", "selfsubjectreview", false,
			func() runtime.Object { return &authenticationv1.SelfSubjectReview{} },
		},
		{
			authn.WithKind("TokenReview"), "tokenreviews", "tokenreview", false,
			func() runtime.Object { return &authenticationv1.TokenReview{} },
		},
		{
			authz.WithKind("LocalSubjectAccessReview"), "localsubjectaccessreviews", "localsubjectaccessreview", true,
			func() runtime.Object { return &authorizationv1.LocalSubjectAccessReview{} },
		},
		{
			authz.WithKind("SelfSubjectAccessReview"), "selfsubjectaccessreviews", "selfsubjectaccessreview", false,
			func() runtime.Object { return &authorizationv1.SelfSubjectAccessReview{} },
		},
		{
			authz.WithKind("SelfSubjectRulesReview"), "selfsubjectrulesreviews", "selfsubjectrulesreview", false,
			func() runtime.Object { return &authorizationv1.SelfSubjectRulesReview{} },
		},
		{
			authz.WithKind("SubjectAccessReview"), "subjectaccessreviews", "subjectaccessreview", false,
			func() runtime.Object { return &authorizationv1.SubjectAccessReview{} },
		},
	}
}

// IsReview reports whether an object is a review, which the API server answers.
func IsReview(o runtime.Object) bool {
	switch o.(type) {
	case *authenticationv1.SelfSubjectReview, *authenticationv1.TokenReview, *authorizationv1.LocalSubjectAccessReview,
		*authorizationv1.SelfSubjectAccessReview, *authorizationv1.SelfSubjectRulesReview,
		*authorizationv1.SubjectAccessReview:
		return true
	}
	return false
}
