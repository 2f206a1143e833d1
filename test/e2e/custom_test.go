package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/coracle-dev/coracle/test/host"
)

// certificates is a CustomResourceDefinition in the style of cert-manager's.
const certificates = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: certificates.cert-manager.example.org}
spec:
  group: cert-manager.example.org
  scope: Namespaced
  names: {plural: certificates, singular: certificate, kind: Certificate, shortNames: [cert, certs], categories: [cert-manager]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}
    additionalPrinterColumns:
    - {name: Ready, type: string, jsonPath: '.status.conditions[?(@.type=="Ready")].status'}
    - {name: Secret, type: string, jsonPath: .spec.secretName}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [secretName]
            description: Specification of the desired state of the Certificate.
            properties:
              secretName: {type: string, description: Name of the Secret.}
              replicas: {type: integer, default: 1}
              issuerRef: {type: object, properties: {name: {type: string}, kind: {type: string, default: Issuer}}}
          status:
            type: object
            properties:
              replicas: {type: integer}
              conditions: {type: array, items: {type: object, properties: {type: {type: string}, status: {type: string}}}}
`

const certificate = `{apiVersion: cert-manager.example.org/v1, kind: Certificate, metadata: {name: web, namespace: default}, spec: {secretName: web-tls, issuerRef: {name: ca}}}`

// TestCustomResources defines a kind and uses it with kubectl and an informer while the server is killed.
func TestCustomResources(t *testing.T) {
	h := host.New(t)
	h.Start()
	h.Pipe(certificates, "ctl", "apply", "--server-side", "-f", "-")
	h.Ctl("wait --for=condition=Established crd/certificates.cert-manager.example.org --timeout=120s")
	require.Contains(t, h.Ctl("api-resources"), "cert,certs")

	client, err := dynamic.NewForConfig(h.REST())
	require.NoError(t, err)
	seen := make(chan string, 100)
	factory := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	informer := factory.ForResource(schema.GroupVersionResource{
		Group:    "cert-manager.example.org",
		Version:  "v1",
		Resource: "certificates",
	}).Informer()
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { seen <- "added " + o.(*unstructured.Unstructured).GetName() },
		UpdateFunc: func(_, o any) {
			n, _, _ := unstructured.NestedInt64(o.(*unstructured.Unstructured).Object, "spec", "replicas")
			seen <- fmt.Sprintf("replicas %d", n)
		},
		DeleteFunc: func(any) { seen <- "deleted" },
	})
	require.NoError(t, err)
	factory.Start(t.Context().Done())
	t.Cleanup(factory.Shutdown)
	sees := func(what string) {
		t.Helper()
		patience := time.After(host.Patience)
		for {
			select {
			case got := <-seen:
				if got == what {
					return
				}
			case <-patience:
				t.Fatalf("the informer did not see %q", what)
			}
		}
	}

	h.Pipe(certificate, "ctl", "apply", "-f", "-")
	sees("added web")
	require.Regexp(t, `(?m)^web +web-tls`, h.Ctl("get certs"))
	require.Contains(t, h.Ctl("get cert-manager -o name"), "certificate.cert-manager.example.org/web")
	require.Contains(t, h.Ctl("explain certificate.spec"), "Name of the Secret.")
	require.Equal(t, "Issuer", h.Ctl("get cert web -o jsonpath={.spec.issuerRef.kind}"))
	// kubectl uses the patch type that OpenAPI declares.
	h.Pipe(strings.Replace(certificate, "web-tls", "web-tls-2", 1), "ctl", "apply", "-f", "-")
	require.Equal(t, "web-tls-2", h.Ctl("get cert web -o jsonpath={.spec.secretName}"))
	h.Ctl("scale certificate/web --replicas=3")
	sees("replicas 3")
	require.Contains(t, h.Fails("ctl", "patch", "cert", "web", "--type=merge", "-p", `{"spec":{"secretName":7}}`),
		"spec.secretName: Invalid value: \"integer\"")

	h.Kill()
	h.Run("start")
	require.Equal(t, "3", h.Ctl("get cert web -o jsonpath={.spec.replicas}"))
	h.Ctl("scale certificate/web --replicas=4")
	sees("replicas 4")
	h.Ctl("delete crd certificates.cert-manager.example.org --timeout=120s")
	sees("deleted")
	require.Empty(t, h.Ctl("get crd -o name"))
}
