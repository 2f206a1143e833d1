package apiserver

import (
	"context"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	authorizationapi "k8s.io/kubernetes/pkg/apis/authorization"
	conversion "k8s.io/kubernetes/pkg/apis/authorization/v1"
	"k8s.io/kubernetes/pkg/apis/authorization/validation"
	authorizationutil "k8s.io/kubernetes/pkg/registry/authorization/util"
)

// answer fills in the status of a review for the user in ctx. It does nothing for kinds that are not reviews.
func (s *Server) answer(ctx context.Context, namespace string, obj runtime.Object) error {
	who, _ := request.UserFrom(ctx)
	invalid := func(kind string, errs field.ErrorList) error {
		if len(errs) == 0 {
			return nil
		}
		return apierrors.NewInvalid(authorizationv1.SchemeGroupVersion.WithKind(kind).GroupKind(), "", errs)
	}
	switch r := obj.(type) {
	case *authenticationv1.SelfSubjectReview:
		r.Status.UserInfo = userInfo(who)
		r.CreationTimestamp = metav1.Now()
		return nil

	case *authenticationv1.TokenReview:
		return s.reviewToken(ctx, r)

	case *authorizationv1.SubjectAccessReview:
		in := authorizationapi.SubjectAccessReview{}
		if err := conversion.Convert_v1_SubjectAccessReview_To_authorization_SubjectAccessReview(r, &in, nil); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		if err := invalid("SubjectAccessReview", validation.ValidateSubjectAccessReview(&in)); err != nil {
			return err
		}
		r.Status = s.access(ctx, authorizationutil.AuthorizationAttributesFrom(in.Spec))
		return nil

	case *authorizationv1.LocalSubjectAccessReview:
		in := authorizationapi.LocalSubjectAccessReview{}
		convert := conversion.Convert_v1_LocalSubjectAccessReview_To_authorization_LocalSubjectAccessReview
		if err := convert(r, &in, nil); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		if err := invalid("LocalSubjectAccessReview", validation.ValidateLocalSubjectAccessReview(&in)); err != nil {
			return err
		}
		if in.Spec.ResourceAttributes.Namespace != namespace {
			return apierrors.NewBadRequest("spec.resourceAttributes.namespace must match namespace: " + namespace)
		}
		r.Status = s.access(ctx, authorizationutil.AuthorizationAttributesFrom(in.Spec))
		return nil

	case *authorizationv1.SelfSubjectAccessReview:
		in := authorizationapi.SelfSubjectAccessReview{}
		convert := conversion.Convert_v1_SelfSubjectAccessReview_To_authorization_SelfSubjectAccessReview
		if err := convert(r, &in, nil); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		if err := invalid("SelfSubjectAccessReview", validation.ValidateSelfSubjectAccessReview(&in)); err != nil {
			return err
		}
		if in.Spec.ResourceAttributes != nil {
			r.Status = s.access(ctx, authorizationutil.ResourceAttributesFrom(who, *in.Spec.ResourceAttributes))
		} else {
			r.Status = s.access(ctx, authorizationutil.NonResourceAttributesFrom(who, *in.Spec.NonResourceAttributes))
		}
		return nil

	case *authorizationv1.SelfSubjectRulesReview:
		if r.Spec.Namespace == "" {
			return apierrors.NewBadRequest("no namespace on request")
		}
		return s.rules(ctx, who, r)
	}
	return apierrors.NewInternalError(errNoAnswer)
}

func (s *Server) reviewToken(ctx context.Context, r *authenticationv1.TokenReview) error {
	if r.Spec.Token == "" {
		return apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	want := authenticator.Audiences(r.Spec.Audiences)
	actx := ctx
	if len(want) > 0 {
		actx = authenticator.WithAudiences(ctx, want)
	}
	res, ok, err := s.auth.tokens.AuthenticateToken(actx, r.Spec.Token)
	r.Status = authenticationv1.TokenReviewStatus{Authenticated: ok && err == nil}
	switch {
	case err != nil:
		r.Status.Error = err.Error()
	case !ok:
		r.Status.Error = "invalid bearer token"
	}
	if r.Status.Authenticated {
		r.Status.User = userInfo(authenticated(res.User))
		r.Status.Audiences = res.Audiences
		if len(want) > 0 && len(want.Intersect(res.Audiences)) == 0 {
			r.Status = authenticationv1.TokenReviewStatus{Error: "token audiences are not those that were asked for"}
		}
	}
	return nil
}

func (s *Server) access(ctx context.Context,
	attrs authorizer.AttributesRecord) authorizationv1.SubjectAccessReviewStatus {
	decision, reason, err := s.auth.Authorize(ctx, attrs)
	return authorizationv1.SubjectAccessReviewStatus{
		Allowed: decision == authorizer.DecisionAllow, Denied: decision == authorizer.DecisionDeny,
		Reason: reason, EvaluationError: authorizationutil.BuildEvaluationError(err, attrs),
	}
}

func (s *Server) rules(ctx context.Context, who user.Info, r *authorizationv1.SelfSubjectRulesReview) error {
	resources, others, incomplete, err := s.auth.RulesFor(ctx, who, r.Spec.Namespace)
	r.Status = authorizationv1.SubjectRulesReviewStatus{
		Incomplete: incomplete, ResourceRules: []authorizationv1.ResourceRule{},
		NonResourceRules: []authorizationv1.NonResourceRule{},
	}
	for _, x := range resources {
		r.Status.ResourceRules = append(r.Status.ResourceRules, authorizationv1.ResourceRule{
			Verbs: x.GetVerbs(), APIGroups: x.GetAPIGroups(), Resources: x.GetResources(), ResourceNames: x.GetResourceNames(),
		})
	}
	for _, x := range others {
		r.Status.NonResourceRules = append(r.Status.NonResourceRules, authorizationv1.NonResourceRule{
			Verbs: x.GetVerbs(), NonResourceURLs: x.GetNonResourceURLs(),
		})
	}
	if err != nil {
		r.Status.EvaluationError = err.Error()
	}
	return nil
}

func userInfo(u user.Info) authenticationv1.UserInfo {
	out := authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: slices.Clone(u.GetGroups())}
	for k, v := range u.GetExtra() {
		if out.Extra == nil {
			out.Extra = map[string]authenticationv1.ExtraValue{}
		}
		out.Extra[k] = slices.Clone(v)
	}
	return out
}
