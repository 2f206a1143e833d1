package builtin

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"
	internal "k8s.io/kubernetes/pkg/apis/certificates"
	_ "k8s.io/kubernetes/pkg/apis/certificates/install"
	"k8s.io/kubernetes/pkg/registry/certificates/certificates"
	"k8s.io/kubernetes/pkg/registry/certificates/clustertrustbundle"
	"k8s.io/kubernetes/pkg/registry/certificates/podcertificaterequest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/kind"
)

func certificateRows() []*kind.Resource {
	v1 := gv("certificates.k8s.io", "v1")
	strategy := signingRequests{certificates.Strategy, certificates.Strategy, certificates.Strategy}
	requests := row[certificatesv1.CertificateSigningRequest, certificatesv1.CertificateSigningRequestList](v1,
		"certificatesigningrequests", "certificatesigningrequest", strategy, signerFields)
	requests.ShortNames, requests.Status = []string{"csr"}, certificates.StatusStrategy
	requests.Subresources = []kind.Subresource{
		{Name: "approval", GroupVersionKind: requests.GroupVersionKind, Verbs: partVerbs,
			New:    func() runtime.Object { return &certificatesv1.CertificateSigningRequest{} },
			Update: certificates.ApprovalStrategy},
	}

	bundles := row[certificatesv1.ClusterTrustBundle, certificatesv1.ClusterTrustBundleList](v1, "clustertrustbundles",
		"clustertrustbundle", clustertrustbundle.Strategy, bundleFields)
	// Upstream 1.37 stores v1beta1, which it does not serve by default.
	bundles.Also = []*kind.Resource{
		row[certificatesv1beta1.ClusterTrustBundle, certificatesv1beta1.ClusterTrustBundleList](gv(v1.Group, "v1beta1"),
			"clustertrustbundles", "clustertrustbundle",
			clustertrustbundle.Strategy, metaFields),
	}

	// Rows have no authorizer: the registry checks whether an author may sign.
	podStrategy := podcertificaterequest.NewStrategy()
	pods := row[certificatesv1.PodCertificateRequest, certificatesv1.PodCertificateRequestList](v1,
		"podcertificaterequests", "podcertificaterequest", podStrategy, podRequestFields)
	pods.Status = podcertificaterequest.NewStatusStrategy(podStrategy, anyone{}, clock.RealClock{})
	pods.Also = []*kind.Resource{
		row[certificatesv1beta1.PodCertificateRequest, certificatesv1beta1.PodCertificateRequestList](gv(v1.Group, "v1beta1"),
			"podcertificaterequests", "podcertificaterequest",
			podStrategy, metaFields),
	}
	return []*kind.Resource{requests, bundles, pods}
}

// kubeletBundleRoles returns the role and binding that let the publisher of ClusterTrustBundles for
// kubernetes.io/kubelet-serving attest for that signer. Upstream has such roles for the API server's signer.
func kubeletBundleRoles() []client.Object {
	const account = "kubelet-serving-clustertrustbundle-publisher"
	rule := func(resource string, names []string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{
			APIGroups:     []string{certificatesv1.GroupName},
			Resources:     []string{resource},
			ResourceNames: names,
			Verbs:         verbs,
		}
	}
	role := &rbacv1.ClusterRole{ObjectMeta: own.RoleMeta("system:controller:" + account), Rules: []rbacv1.PolicyRule{
		rule("signers", []string{certificatesv1.KubeletServingSignerName}, "attest"),
		rule("clustertrustbundles", nil, "create", "update", "delete", "list", "watch"),
	}}
	return []client.Object{role, own.ControllerBinding(role, account)}
}

// anyone authorizes every request.
type anyone struct{}

func (anyone) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionAllow, "", nil
}

var signerFields = kind.SelectFields([]string{"spec.signerName"},
	func(r *certificatesv1.CertificateSigningRequest, v []string) []string {
		return append(v, r.Spec.SignerName)
	})

var bundleFields = kind.SelectFields([]string{"spec.signerName"},
	func(b *certificatesv1.ClusterTrustBundle, v []string) []string {
		return append(v, b.Spec.SignerName)
	})

// podRequestFields has no metadata.namespace, as upstream.
var podRequestFields = kind.SelectFields([]string{"spec.signerName", "spec.podName", "spec.nodeName"},
	func(r *certificatesv1.PodCertificateRequest, v []string) []string {
		return append(v, r.Spec.SignerName, r.Spec.PodName, string(r.Spec.NodeName))
	}).ClusterScoped()

// Limits of a certificate signing request. Upstream has none, and verifies the signature of an RSA key of any size.
// For the largest key that fits into a request, this takes minutes.
const (
	maxSigningRequest = 256 << 10 // bytes of PEM
	maxRSABits        = 16384
)

// signingRequests is upstream's strategy with size limits.
type signingRequests struct {
	kind.Strategy
	rest.ResetFieldsStrategy
	rest.DeclarativeValidationStrategy
}

func (s signingRequests) Validate(ctx context.Context, o runtime.Object) field.ErrorList {
	if r, ok := o.(*internal.CertificateSigningRequest); ok {
		if err := tooLarge(r.Spec.Request); err != nil {
			return field.ErrorList{err}
		}
	}
	return s.Strategy.Validate(ctx, o)
}

// tooLarge returns an error for a request that is expensive to validate.
func tooLarge(text []byte) *field.Error {
	path := field.NewPath("spec", "request")
	if len(text) > maxSigningRequest {
		return field.TooLong(path, "", maxSigningRequest)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil // upstream's validation reports it
	}
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil
	}
	if key, ok := parsed.PublicKey.(*rsa.PublicKey); ok && key.N.BitLen() > maxRSABits {
		return field.Invalid(path, fmt.Sprintf("RSA key of %d bits", key.N.BitLen()),
			fmt.Sprintf("must have at most %d bits", maxRSABits))
	}
	return nil
}
