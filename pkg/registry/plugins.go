package registry

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/plugin/pkg/admission/defaulttolerationseconds"
	"k8s.io/kubernetes/plugin/pkg/admission/limitranger"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/nodetaint"
	"k8s.io/kubernetes/plugin/pkg/admission/podresize"
	"k8s.io/kubernetes/plugin/pkg/admission/priority"
	"k8s.io/kubernetes/plugin/pkg/admission/serviceaccount"

	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
)

// upstreamPlugins is upstream's default chain for the kinds served, in upstream's order. NamespaceLifecycle and
// PodTopologyLabels are not in it: the registry does what they do, from the cache.
func (r *Registry) upstreamPlugins() (admission.Interface, error) {
	limits, err := limitranger.NewLimitRanger(&limitranger.DefaultLimitRangerActions{})
	if err != nil {
		return nil, err
	}
	resize, err := podresize.NewPlugin()
	if err != nil {
		return nil, err
	}
	plugins := []admission.Interface{
		limits,
		serviceaccount.NewServiceAccount(),
		noderestriction.NewPlugin(nodeidentifier.NewDefaultNodeIdentifier()),
		nodetaint.NewPlugin(),
		priority.NewPlugin(),
		defaulttolerationseconds.NewDefaultTolerationSeconds(),
		resize,
		podRanges{nodeidentifier.NewDefaultNodeIdentifier()},
	}
	factory := r.Informers()
	reads := cacheReads{client: r.Client(nil)}
	for _, p := range plugins {
		// The features first: they decide what else is wanted.
		if w, ok := p.(initializer.WantsFeatures); ok {
			w.InspectFeatureGates(utilfeature.DefaultFeatureGate)
		}
		if w, ok := p.(initializer.WantsExternalKubeInformerFactory); ok {
			w.SetExternalKubeInformerFactory(factory)
		}
		if w, ok := p.(initializer.WantsExternalKubeClientSet); ok {
			w.SetExternalKubeClientSet(reads)
		}
		if w, ok := p.(initializer.WantsUnconditionalAuthorizer); ok {
			w.SetUnconditionalAuthorizer(authorizer.AuthorizerFunc(r.authorize))
		}
		if v, ok := p.(admission.InitializationValidator); ok {
			if err := v.ValidateInitialization(); err != nil {
				return nil, fmt.Errorf("registry: admission: %w", err)
			}
		}
	}
	return admission.NewChainHandler(plugins...), nil
}

// authorize asks the authorizer that there is by then.
func (r *Registry) authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if p := r.authorizer.Load(); p != nil {
		return (*p).Authorize(ctx, a)
	}
	return authorizer.DecisionAllow, "", nil
}

// cacheReads is as much of a clientset as the plugins use: the live lookups of those that do not trust their
// informers. Ours are the cache itself, so the lookups read it again. Any other call of it panics.
type cacheReads struct {
	kubernetes.Interface
	client client.Interface
}

func (c cacheReads) CoreV1() typedcorev1.CoreV1Interface { return coreReads{client: c.client} }

type coreReads struct {
	typedcorev1.CoreV1Interface
	client client.Interface
}

func (c coreReads) ServiceAccounts(namespace string) typedcorev1.ServiceAccountInterface {
	return accountReads{client: c.client, namespace: namespace}
}

func (c coreReads) LimitRanges(namespace string) typedcorev1.LimitRangeInterface {
	return limitReads{client: c.client, namespace: namespace}
}

type accountReads struct {
	typedcorev1.ServiceAccountInterface
	client    client.Interface
	namespace string
}

func (a accountReads) Get(ctx context.Context, name string, _ metav1.GetOptions) (*corev1.ServiceAccount, error) {
	out := &corev1.ServiceAccount{}
	return out, a.client.Get(ctx, ctrl.ObjectKey{Namespace: a.namespace, Name: name}, out)
}

type limitReads struct {
	typedcorev1.LimitRangeInterface
	client    client.Interface
	namespace string
}

func (l limitReads) List(ctx context.Context, _ metav1.ListOptions) (*corev1.LimitRangeList, error) {
	out := &corev1.LimitRangeList{}
	return out, l.client.List(ctx, out, ctrl.InNamespace(l.namespace))
}
