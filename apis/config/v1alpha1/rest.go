package v1alpha1

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
)

// REST configures the REST facade. It is disabled if RESTAddress is empty.
type REST struct {
	// RESTAddress is the address and port of the facade.
	RESTAddress string
	// RESTTokenFile is the absolute path of a file with the token that requests need. It is reloaded when it
	// changes.
	RESTTokenFile string
	// RESTInsecure serves plain HTTP without a token. RESTAddress must be a loopback address.
	RESTInsecure bool
	// RESTCORSOrigins are origins of web pages that may send requests, such as https://example.com. "*" allows all.
	RESTCORSOrigins []string
}

// Validate returns all errors at once. Without a token, the facade must be on loopback.
func (c REST) Validate() error {
	if c.RESTAddress == "" {
		if c.RESTTokenFile != "" || c.RESTInsecure || len(c.RESTCORSOrigins) > 0 {
			return errors.New("rest-token-file, rest-insecure and rest-cors-origins need rest-address")
		}
		return nil
	}
	errs := []error{listen("rest-address", c.RESTAddress)}
	host, _, _ := cutPort(c.RESTAddress)
	address, err := netip.ParseAddr(host)
	loopback := err == nil && address.IsLoopback()
	switch {
	case c.RESTInsecure && c.RESTTokenFile != "":
		errs = append(errs, errors.New("rest-insecure and rest-token-file are both given: leave one out"))
	case c.RESTInsecure && !loopback:
		errs = append(errs,
			fmt.Errorf("rest-address %q is open to others: with rest-insecure it must be on loopback, such as 127.0.0.1:8070",
				c.RESTAddress))
	case !c.RESTInsecure && c.RESTTokenFile == "":
		errs = append(errs, errors.New("rest-address needs rest-token-file, or rest-insecure if it is on loopback"))
	}
	if c.RESTTokenFile != "" && !filepath.IsAbs(c.RESTTokenFile) {
		errs = append(errs, fmt.Errorf("rest-token-file %q must be an absolute path", c.RESTTokenFile))
	}
	for _, origin := range c.RESTCORSOrigins {
		u, err := url.Parse(origin)
		if origin != "*" &&
			(err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || origin != u.Scheme+"://"+u.Host ||
				strings.ToLower(origin) != origin) {
			errs = append(errs, fmt.Errorf("rest-cors-origins %q is not of the form https://example.com", origin))
		}
	}
	return errors.Join(errs...)
}

func (c *REST) options(f *pflag.FlagSet) {
	f.StringVar(&c.RESTAddress, "rest-address", "",
		"address and port of the REST facade (tasks, pods, services and nodes as plain JSON); off by default")
	f.StringVar(&c.RESTTokenFile, "rest-token-file", "",
		"file with the bearer token of the REST facade; reloaded when it changes")
	f.BoolVar(&c.RESTInsecure, "rest-insecure", false,
		"serve the REST facade as plain HTTP without a token, on a loopback address only")
	f.StringSliceVar(&c.RESTCORSOrigins, "rest-cors-origins", nil,
		"origins of web pages that may use the REST facade, such as https://example.com; * is all")
}
