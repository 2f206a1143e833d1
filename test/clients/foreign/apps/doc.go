// Package apps is the place of the client of apis/apps/v1, which the test generates.
package apps
