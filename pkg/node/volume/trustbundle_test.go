package volume

import (
	"bytes"
	"context"
	"encoding/pem"
	"testing"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func certificate(text string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(text)}))
}

// onWire lists with the selector as text, like a request. A selector that matches nothing then becomes an empty one.
type onWire struct{ ctrl.WithWatch }

func (c onWire) List(ctx context.Context, list ctrl.ObjectList, options ...ctrl.ListOption) error {
	var o ctrl.ListOptions
	o.ApplyOptions(options)
	selector, err := labels.Parse(o.LabelSelector.String())
	if err != nil {
		return err
	}
	o.LabelSelector = selector
	return c.WithWatch.List(ctx, list, &o)
}

func TestTrustAnchors(t *testing.T) {
	bundle := func(name, signer, text string, labels map[string]string) *certificatesv1.ClusterTrustBundle {
		return &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: text}}
	}
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithIndex(&certificatesv1.ClusterTrustBundle{},
		"spec.signerName", func(o ctrl.Object) []string {
			return []string{o.(*certificatesv1.ClusterTrustBundle).Spec.SignerName}
		}).WithObjects(
		bundle("plain", "", "a comment\n"+certificate("b")+certificate("a")+certificate("b"), nil),
		bundle("s:1", "example.org/s", certificate("one")+certificate("both"), map[string]string{"live": "yes"}),
		bundle("s:2", "example.org/s", certificate("both")+certificate("two"), map[string]string{"live": "yes"}),
		bundle("s:3", "example.org/s", certificate("three"), map[string]string{"live": "no"}),
		bundle("t:1", "example.org/t", certificate("theirs"), map[string]string{"live": "yes"}),
	).Build()
	o := newObjects(uncached{onWire{c}}, nil, nil)
	live := &metav1.LabelSelector{MatchLabels: map[string]string{"live": "yes"}}
	never := &metav1.LabelSelector{MatchLabels: map[string]string{"live": "never"}}
	for name, tt := range map[string]struct {
		source corev1.ClusterTrustBundleProjection
		want   string
		err    string
	}{
		"by name": {
			source: corev1.ClusterTrustBundleProjection{Name: new("plain")}, want: certificate("a") + certificate("b"),
		},
		"missing": {
			source: corev1.ClusterTrustBundleProjection{Name: new("none")},
			err:    `clustertrustbundles.certificates.k8s.io "none" not found`,
		},
		"missing and optional": {source: corev1.ClusterTrustBundleProjection{Name: new("none"), Optional: new(true)}},
		"by signer and labels": {
			source: corev1.ClusterTrustBundleProjection{SignerName: new("example.org/s"), LabelSelector: live},
			want:   certificate("both") + certificate("one") + certificate("two"),
		},
		"all of a signer": {
			source: corev1.ClusterTrustBundleProjection{
				SignerName: new("example.org/t"), LabelSelector: &metav1.LabelSelector{},
			}, want: certificate("theirs"),
		},
		"no labels match": {
			source: corev1.ClusterTrustBundleProjection{SignerName: new("example.org/s"), LabelSelector: never},
			err:    "matched zero ClusterTrustBundles",
		},
		"without a selector": {
			source: corev1.ClusterTrustBundleProjection{SignerName: new("example.org/s")},
			err:    "matched zero ClusterTrustBundles",
		},
		"no labels and optional": {
			source: corev1.ClusterTrustBundleProjection{
				SignerName:    new("example.org/s"),
				LabelSelector: never,
				Optional:      new(true),
			},
		},
		"without, and optional": {
			source: corev1.ClusterTrustBundleProjection{SignerName: new("example.org/s"), Optional: new(true)},
		},
		"neither": {err: "requires either name or signerName"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := o.trustAnchors(t.Context(), &tt.source)
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, string(got))
		})
	}
	require.True(t, bytes.Equal(anchors(certificate("x")+certificate("y")), anchors(certificate("y"), certificate("x"))),
		"the order is stable")
}
