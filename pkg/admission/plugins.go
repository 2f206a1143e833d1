// Package admission chooses upstream's admission plugins, configures them, and puts them into a registry as the chain that every
// write passes.
//
// It may import registry, the in-process client and the Kubernetes libraries, k8s.io/kubernetes included. Its invariant: a
// plugin that is asked for runs, with the configuration given, or Install fails; what it is configured for and would not do is refused.
package admission

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	resourcequotaapi "k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota/validation"
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

	"github.com/coracle-dev/coracle/pkg/client/local"
	"github.com/coracle-dev/coracle/pkg/registry"
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

// ordered is the plugins in upstream's order. ResourceQuota, which charges and so comes last, is the registry's own.
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
// (builtin.EventTTL) can take to some 40,000 objects.
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

// Install makes the chain of plugins over a registry and its clients, and has the registry use it. Call it before the first write.
func Install(p Plugins, r *registry.Registry, clients *local.Clients) error {
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
			if err := useQuotas(r, config); err != nil {
				return fmt.Errorf("admission plugin %s: %w", o.name, err)
			}
			continue
		}
		o.register(known)
		made, err := known.InitPlugin(o.name, config, needs{r, clients})
		if err != nil {
			return err
		}
		chain = append(chain, made)
	}
	// Not to be disabled: it keeps nodes from choosing the addresses of their pods.
	chain = append(chain, podRanges{nodeidentifier.NewDefaultNodeIdentifier()})
	r.UseAdmission(admission.NewChainHandler(chain...))
	return nil
}

// useQuotas turns on the registry's own ResourceQuota with upstream's configuration of it.
func useQuotas(r *registry.Registry, config io.Reader) error {
	if config == nil {
		return r.UseQuotas(nil)
	}
	c, err := resourcequotaapi.LoadConfiguration(config)
	if err != nil {
		return err
	}
	if errs := validation.ValidateConfiguration(c); len(errs) > 0 {
		return errs.ToAggregate()
	}
	return r.UseQuotas(c.LimitedResources)
}

// needs gives a plugin what it asks for. It implements admission.PluginInitializer.
type needs struct {
	registry *registry.Registry
	clients  *local.Clients
}

func (n needs) Initialize(p admission.Interface) {
	// The features first: they decide what else is wanted.
	if w, ok := p.(initializer.WantsFeatures); ok {
		w.InspectFeatureGates(utilfeature.DefaultFeatureGate)
	}
	if w, ok := p.(initializer.WantsEffectiveVersion); ok {
		w.InspectEffectiveVersion(compatibility.DefaultBuildEffectiveVersion())
	}
	if w, ok := p.(initializer.WantsExternalKubeInformerFactory); ok {
		w.SetExternalKubeInformerFactory(n.clients.Informers())
	}
	if w, ok := p.(initializer.WantsExternalKubeClientSet); ok {
		w.SetExternalKubeClientSet(cacheReads{client: n.clients.For(nil)})
	}
	if w, ok := p.(initializer.WantsUnconditionalAuthorizer); ok {
		w.SetUnconditionalAuthorizer(n.registry)
	}
}
