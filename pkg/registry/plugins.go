package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	resourcequotaapi "k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/plugin/pkg/admission/alwayspullimages"
	"k8s.io/kubernetes/plugin/pkg/admission/defaulttolerationseconds"
	"k8s.io/kubernetes/plugin/pkg/admission/eventratelimit"
	"k8s.io/kubernetes/plugin/pkg/admission/limitranger"
	"k8s.io/kubernetes/plugin/pkg/admission/network/denyserviceexternalips"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/nodetaint"
	"k8s.io/kubernetes/plugin/pkg/admission/podresize"
	"k8s.io/kubernetes/plugin/pkg/admission/priority"
	"k8s.io/kubernetes/plugin/pkg/admission/security/podsecurity"
	"k8s.io/kubernetes/plugin/pkg/admission/serviceaccount"
)

// Plugins chooses the admission plugins and configures them.
type Plugins struct {
	// Enable and Disable add to and take from the plugins that are on by default, by upstream's names.
	Enable, Disable []string
	// Config is the path of an AdmissionConfiguration (apiserver.config.k8s.io/v1) as upstream's
	// --admission-control-config-file; empty for none.
	Config string
}

// plugin is one admission plugin.
type plugin struct {
	name     string
	off      bool // by default
	register func(*admission.Plugins)
	// config is the configuration used where the file has none.
	config string
}

// ordered is the plugins in upstream's order. ResourceQuota, which charges and so comes last, is the registry's own: quota.go.
//
// Decision: upstream's EventRateLimit and DenyServiceExternalIPs are off by default, here they are on. All events of an
// hour are in memory, and a service may take addresses that belong to others.
var ordered = []plugin{
	{name: limitranger.PluginName, register: limitranger.Register},
	{name: serviceaccount.PluginName, register: serviceaccount.Register},
	{name: noderestriction.PluginName, register: noderestriction.Register},
	{name: nodetaint.PluginName, register: nodetaint.Register},
	{name: alwayspullimages.PluginName, register: alwayspullimages.Register, off: true},
	{name: podsecurity.PluginName, register: podsecurity.Register},
	{name: priority.PluginName, register: priority.Register},
	{name: defaulttolerationseconds.PluginName, register: defaulttolerationseconds.Register},
	{name: eventratelimit.PluginName, register: eventratelimit.Register, config: defaultEventLimits},
	{name: denyserviceexternalips.PluginName, register: denyserviceexternalips.Register},
	{name: podresize.PluginName, register: podresize.Register},
	{name: resourcequotaapi.PluginName},
}

// defaultEventLimits lets 5,000 pods start in one namespace at once, and bounds what a namespace's events of an hour
// (EventTTL) can take to some 40,000 objects.
const defaultEventLimits = `apiVersion: eventratelimit.admission.k8s.io/v1alpha1
kind: Configuration
limits:
- {type: Namespace, qps: 10, burst: 10000, cacheSize: 4096}
- {type: User, qps: 50, burst: 20000, cacheSize: 4096}
`

// alwaysOn is what the registry does itself, from the cache, and cannot be turned off.
var alwaysOn = []string{"NamespaceLifecycle", "PodTopologyLabels"}

// on lists the plugins to run, in order.
func (p Plugins) on() ([]plugin, error) {
	var errs []error
	known := slices.Clone(alwaysOn)
	for _, o := range ordered {
		known = append(known, o.name)
	}
	slices.Sort(known)
	for _, name := range slices.Concat(p.Enable, p.Disable) {
		if !slices.Contains(known, name) {
			errs = append(errs, fmt.Errorf("unknown admission plugin %q: there are %s", name, strings.Join(known, ", ")))
		}
	}
	for _, name := range p.Disable {
		if slices.Contains(alwaysOn, name) {
			errs = append(errs, fmt.Errorf("the admission plugin %s cannot be disabled", name))
		}
		if slices.Contains(p.Enable, name) {
			errs = append(errs, fmt.Errorf("the admission plugin %s is both enabled and disabled", name))
		}
	}
	list := slices.DeleteFunc(slices.Clone(ordered), func(o plugin) bool {
		return slices.Contains(p.Disable, o.name) || o.off && !slices.Contains(p.Enable, o.name)
	})
	return list, errors.Join(errs...)
}

// usePlugins makes the chain and the quota's part of it.
func (r *Registry) usePlugins(p Plugins) error {
	list, err := p.on()
	if err != nil {
		return fmt.Errorf("admission: %w", err)
	}
	configs, err := readPluginConfigs(p.Config, list)
	if err != nil {
		return fmt.Errorf("admission configuration %s: %w", p.Config, err)
	}
	known := admission.NewPlugins()
	chain := make([]admission.Interface, 0, len(list))
	for _, o := range list {
		config, err := configs.ConfigFor(o.name)
		if err != nil {
			return err
		}
		if o.register == nil {
			if r.quotas, err = newQuotas(r, config); err != nil {
				return fmt.Errorf("admission plugin %s: %w", o.name, err)
			}
			continue
		}
		o.register(known)
		made, err := known.InitPlugin(o.name, config, r)
		if err != nil {
			return err
		}
		chain = append(chain, made)
	}
	// Not to be disabled: it keeps nodes from choosing the addresses of their pods.
	chain = append(chain, podRanges{nodeidentifier.NewDefaultNodeIdentifier()})
	r.admission = admission.NewChainHandler(chain...)
	return nil
}

// Initialize gives a plugin what it asks for. It implements admission.PluginInitializer.
func (r *Registry) Initialize(p admission.Interface) {
	// The features first: they decide what else is wanted.
	if w, ok := p.(initializer.WantsFeatures); ok {
		w.InspectFeatureGates(utilfeature.DefaultFeatureGate)
	}
	if w, ok := p.(initializer.WantsEffectiveVersion); ok {
		w.InspectEffectiveVersion(compatibility.DefaultBuildEffectiveVersion())
	}
	if w, ok := p.(initializer.WantsExternalKubeInformerFactory); ok {
		w.SetExternalKubeInformerFactory(r.Informers())
	}
	if w, ok := p.(initializer.WantsExternalKubeClientSet); ok {
		w.SetExternalKubeClientSet(cacheReads{client: r.Client(nil)})
	}
	if w, ok := p.(initializer.WantsUnconditionalAuthorizer); ok {
		w.SetUnconditionalAuthorizer(authorizer.AuthorizerFunc(r.authorize))
	}
}

// authorize asks the authorizer that there is by then.
func (r *Registry) authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if p := r.authorizer.Load(); p != nil {
		return (*p).Authorize(ctx, a)
	}
	return authorizer.DecisionAllow, "", nil
}
