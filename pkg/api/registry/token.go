package registry

import (
	"context"
	"crypto"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/apis/authentication"
	authenticationvalidation "k8s.io/kubernetes/pkg/apis/authentication/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/coracle-dev/coracle/pkg/api/kinds/builtin"
)

// Tokens signs service account tokens. Its key can be replaced at any time. It is safe for concurrent use.
type Tokens struct {
	issuer  string
	current atomic.Pointer[serviceaccount.TokenGenerator]
	kept    atomic.Pointer[serviceaccount.TokenGenerator] // for tokens kept in Secrets
}

// NewTokens returns Tokens that sign with an ECDSA or RSA private key in the name of issuer.
func NewTokens(issuer string, key crypto.Signer) (*Tokens, error) {
	t := &Tokens{issuer: issuer}
	return t, t.Use(key)
}

// Use replaces the signing key.
func (t *Tokens) Use(key crypto.Signer) error {
	g, err := serviceaccount.JWTTokenGenerator(t.issuer, key)
	if err != nil {
		return err
	}
	kept, err := serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, key)
	if err != nil {
		return err
	}
	t.current.Store(&g)
	t.kept.Store(&kept)
	return nil
}

// SignKept returns a service account token to be kept in the Secret. It is valid as long as the account and the
// Secret exist and the key is trusted.
func (t *Tokens) SignKept(ctx context.Context, account *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	claims, private := serviceaccount.LegacyClaims(*account, *secret)
	return (*t.kept.Load()).GenerateToken(ctx, claims, private)
}

var tokenKind = authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")

// defaultTokenLife is upstream's default lifetime, in seconds.
const defaultTokenLife = 3600

var _ builtin.TokenIssuer = (*parent)(nil)

func (c *parent) IssueToken(in *authenticationv1.TokenRequest,
	o metav1.CreateOptions) (*authenticationv1.TokenRequest, error) {
	if c.cfg.Tokens == nil {
		return nil, errNoTokens
	}
	mismatch := func(what, value, owner string) error {
		return apierrors.NewInvalid(tokenKind.GroupKind(), c.Name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", what), value, "must match the service account "+owner+" if specified")})
	}
	if in.Name != "" && in.Name != c.Name {
		return nil, mismatch("name", in.Name, "name")
	}
	if in.Namespace != "" && in.Namespace != c.Namespace {
		return nil, mismatch("namespace", in.Namespace, "namespace")
	}
	account, err := find[*core.ServiceAccount](c.call, c.row, c.Namespace, c.Name)
	if err != nil {
		return nil, err
	}
	if in.UID != "" && in.UID != account.UID {
		return nil, apierrors.NewConflict(schema.GroupResource{Group: tokenKind.Group, Resource: tokenKind.Kind}, c.Name,
			fmt.Errorf("the UID in the token request (%s) does not match the UID of the service account (%s)", in.UID,
				account.UID))
	}
	now := time.Now()
	in.Name, in.Namespace, in.UID = account.Name, account.Namespace, account.UID
	in.CreationTimestamp, in.Status = metav1.NewTime(now), authenticationv1.TokenRequestStatus{}
	internal := internalTokenRequest(in)
	if errs := authenticationvalidation.ValidateTokenRequest(internal); len(errs) > 0 {
		return nil, apierrors.NewInvalid(tokenKind.GroupKind(), "", errs)
	}
	// Admission runs on the request as sent: default audiences need not be allowed for a node.
	if err := c.admit(internal, nil, admission.Create, &o); err != nil {
		return nil, err
	}
	if len(in.Spec.Audiences) == 0 {
		in.Spec.Audiences, internal.Spec.Audiences = c.cfg.Audiences, c.cfg.Audiences
	}
	if err := c.validate(internal, nil, c.Name, admission.Create, &o); err != nil {
		return nil, err
	}
	bound, err := c.bound(in.Spec.BoundObjectRef)
	if err != nil {
		return nil, err
	}
	life := *in.Spec.ExpirationSeconds
	if most := int64(c.cfg.MaxTokenLife / time.Second); most > 0 && life > most {
		warning.AddWarning(c.ctx, "", fmt.Sprintf("requested expiration of %d seconds shortened to %d seconds", life, most))
		life = most
		in.Spec.ExpirationSeconds = &life
	}
	// As upstream, a kubelet's token outlives the requested expiration, for clients that never reload it. Using it late
	// only causes a warning.
	expires, warnAfter := life, int64(0)
	if !c.cfg.ExactTokenLife && bound.pod != nil && life == serviceaccount.WarnOnlyBoundTokenExpirationSeconds &&
		c.ownAudiences(in.Spec.Audiences) {
		expires, warnAfter = serviceaccount.ExpirationExtensionSeconds, life
	}
	claims, private, err := serviceaccount.Claims(*account, bound.pod, bound.secret, bound.node, nil, nil, expires,
		warnAfter, in.Spec.Audiences, nil)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	signed, err := (*c.cfg.Tokens.current.Load()).GenerateToken(c.ctx, claims, private)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("failed to generate token: %w", err))
	}
	in.Status = authenticationv1.TokenRequestStatus{
		Token: signed, ExpirationTimestamp: metav1.NewTime(now.Add(time.Duration(life) * time.Second)),
	}
	in.SetGroupVersionKind(tokenKind)
	return in, nil
}

// internalTokenRequest sets the default lifetime and returns the internal version, for validation and admission.
func internalTokenRequest(in *authenticationv1.TokenRequest) *authentication.TokenRequest {
	if in.Spec.ExpirationSeconds == nil {
		in.Spec.ExpirationSeconds = new(int64(defaultTokenLife))
	}
	internal := &authentication.TokenRequest{ObjectMeta: in.ObjectMeta, Spec: authentication.TokenRequestSpec{
		Audiences: in.Spec.Audiences, ExpirationSeconds: *in.Spec.ExpirationSeconds}}
	if ref := in.Spec.BoundObjectRef; ref != nil {
		internal.Spec.BoundObjectRef = &authentication.BoundObjectReference{
			Kind:       ref.Kind,
			APIVersion: ref.APIVersion,
			Name:       ref.Name,
			UID:        ref.UID,
		}
	}
	return internal
}

func (c *call) ownAudiences(asked []string) bool {
	return !slices.ContainsFunc(asked, func(a string) bool { return !slices.Contains(c.cfg.Audiences, a) })
}

type boundTo struct {
	pod    *core.Pod
	secret *core.Secret
	node   *core.Node
}

// bound finds the object that the token's lifetime is bound to.
func (c *call) bound(ref *authenticationv1.BoundObjectReference) (b boundTo, err error) {
	if ref == nil {
		return b, nil
	}
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	var uid types.UID
	switch {
	case gvk.Group == "" && gvk.Kind == "Pod":
		if b.pod, err = find[*core.Pod](c, c.kinds.Table().ByGVK(corev1.SchemeGroupVersion.WithKind("Pod")), c.Namespace,
			ref.Name); err != nil {
			return b, err
		}
		uid = b.pod.UID
		if c.Name != b.pod.Spec.ServiceAccountName {
			return b, apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with "+
				"different serviceaccount name.", c.Name))
		}
		if node := b.pod.Spec.NodeName; node != "" {
			b.node, err = find[*core.Node](c, c.kinds.Table().ByGVK(corev1.SchemeGroupVersion.WithKind("Node")), "", node)
			if apierrors.IsNotFound(err) {
				b.node, err = &core.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, nil
			}
		}
	case gvk.Group == "" && gvk.Kind == "Node":
		if b.node, err = find[*core.Node](c, c.kinds.Table().
			ByGVK(corev1.SchemeGroupVersion.WithKind("Node")), "", ref.Name); err == nil {
			uid = b.node.UID
		}
	case gvk.Group == "" && gvk.Kind == "Secret":
		if b.secret, err = find[*core.Secret](c, c.kinds.Table().ByGVK(corev1.SchemeGroupVersion.WithKind("Secret")),
			c.Namespace, ref.Name); err == nil {
			uid = b.secret.UID
		}
	default:
		return b, apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", gvk.String()))
	}
	if err == nil && ref.UID != "" && ref.UID != uid {
		err = apierrors.NewConflict(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, ref.Name,
			fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have "+
				"been deleted and then recreated", ref.UID))
	}
	return b, err
}
