package volume

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
)

// maxLabelSelector limits the length of a ClusterTrustBundle label selector in bytes, as in the kubelet.
const maxLabelSelector = 100 << 10

var errNoBundles = errors.New("combination of signerName and labelSelector matched zero ClusterTrustBundles")

// trustAnchors returns the distinct certificates of ClusterTrustBundles as PEM, in a stable order (KEP-3257).
func (o *Objects) trustAnchors(ctx context.Context, p *corev1.ClusterTrustBundleProjection) ([]byte, error) {
	optional := p.Optional != nil && *p.Optional
	switch {
	case p.Name != nil:
		bundle := &certificatesv1.ClusterTrustBundle{}
		err := o.client.Get(ctx, types.NamespacedName{Name: *p.Name}, bundle)
		if apierrors.IsNotFound(err) && optional {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return anchors(bundle.Spec.TrustBundle), nil
	case p.SignerName != nil:
		selector, err := metav1.LabelSelectorAsSelector(p.LabelSelector) // nil matches nothing
		if err != nil {
			return nil, fmt.Errorf("while parsing label selector: %w", err)
		}
		if n := len(selector.String()); n > maxLabelSelector {
			return nil, fmt.Errorf("label selector length (%d) is larger than %d", n, maxLabelSelector)
		}
		var list certificatesv1.ClusterTrustBundleList
		// A selector that matches nothing cannot be sent: the API server would return all bundles of the signer.
		if _, selectable := selector.Requirements(); !selectable {
			if !optional {
				return nil, errNoBundles
			}
			return nil, nil
		}
		if err := o.client.List(ctx, &list, ctrl.MatchingFields{"spec.signerName": *p.SignerName},
			ctrl.MatchingLabelsSelector{Selector: selector}); err != nil {
			return nil, err
		}
		if len(list.Items) == 0 && !optional {
			return nil, errNoBundles
		}
		texts := make([]string, len(list.Items))
		for i := range list.Items {
			texts[i] = list.Items[i].Spec.TrustBundle
		}
		return anchors(texts...), nil
	}
	return nil, errors.New("ClusterTrustBundle projection requires either name or signerName to be set")
}

// anchors returns the distinct certificates in PEM texts, without headers or comments, sorted by their DER encoding.
func anchors(texts ...string) []byte {
	set := map[string]bool{}
	for _, text := range texts {
		for rest := []byte(text); ; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			set[string(block.Bytes)] = true
		}
	}
	var out []byte
	for _, der := range slices.Sorted(maps.Keys(set)) {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(der)})...)
	}
	return out
}
