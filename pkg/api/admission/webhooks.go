package admission

import (
	"context"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	policyconfig "k8s.io/apiserver/pkg/admission/plugin/policy/config"
	webhookconfig "k8s.io/apiserver/pkg/admission/plugin/webhook/config"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/tools/cache"
)

// onDemand is a plugin that is created when the first object that configures it exists. Webhooks and policies
// compile CEL, whose environment takes tens of milliseconds and megabytes, which a cluster without them saves.
type onDemand struct {
	*admission.Handler
	configured func() bool
	plugin     func() (admission.Interface, error)
}

var (
	_ admission.MutationInterface   = onDemand{}
	_ admission.ValidationInterface = onDemand{}
)

// newOnDemand returns a plugin that is created on demand and runs while any of the informers has an object.
func newOnDemand(known *admission.Plugins, name string, config []byte, n needs,
	informers ...cache.SharedIndexInformer) onDemand {
	return onDemand{
		Handler: admission.NewHandler(admission.Create, admission.Update, admission.Delete, admission.Connect),
		configured: func() bool {
			return slices.ContainsFunc(informers, func(i cache.SharedIndexInformer) bool {
				return len(i.GetIndexer().ListKeys()) > 0
			})
		},
		plugin: sync.OnceValues(func() (admission.Interface, error) {
			return known.InitPlugin(name, configReader(config), n)
		}),
	}
}

func (d onDemand) Handles(op admission.Operation) bool {
	return d.Handler.Handles(op) && d.configured()
}

func (d onDemand) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	p, err := d.plugin()
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if p, ok := p.(admission.MutationInterface); ok && p.Handles(a.GetOperation()) {
		return p.Admit(ctx, a, o)
	}
	return nil
}

func (d onDemand) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	p, err := d.plugin()
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if p, ok := p.(admission.ValidationInterface); ok && p.Handles(a.GetOperation()) {
		return p.Validate(ctx, a, o)
	}
	return nil
}

// checkWebhookConfig validates a webhook plugin's configuration before the plugin is created, and reports whether it
// reads webhooks from files.
func checkWebhookConfig(config []byte) (fromFiles bool, err error) {
	c, err := webhookconfig.LoadConfig(configReader(config))
	if err != nil {
		return false, err
	}
	_, err = webhookutil.NewDefaultAuthenticationInfoResolver(c.KubeConfigFile)
	return c.StaticManifestsDir != "", err
}

// reinvoking runs the chain again if a plugin requests it, by upstream's reinvocation policy.
type reinvoking struct{ chain admission.Interface }

var (
	_ admission.MutationInterface   = reinvoking{}
	_ admission.ValidationInterface = reinvoking{}
)

func (r reinvoking) Handles(op admission.Operation) bool { return r.chain.Handles(op) }

func (r reinvoking) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	p, ok := r.chain.(admission.MutationInterface)
	if !ok {
		return nil
	}
	if err := p.Admit(ctx, a, o); err != nil {
		return err
	}
	again := a.GetReinvocationContext()
	if !again.ShouldReinvoke() {
		return nil
	}
	again.SetIsReinvoke()
	return p.Admit(ctx, a, o)
}

func (r reinvoking) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if p, ok := r.chain.(admission.ValidationInterface); ok {
		return p.Validate(ctx, a, o)
	}
	return nil
}

func checkPolicyConfig(config []byte) (fromFiles bool, err error) {
	c, err := policyconfig.LoadValidatingConfig(configReader(config))
	return c.StaticManifestsDir != "", err
}

func checkMutatingPolicyConfig(config []byte) (fromFiles bool, err error) {
	c, err := policyconfig.LoadMutatingConfig(configReader(config))
	return c.StaticManifestsDir != "", err
}
