// Pictures don't scroll: a plain box in place of the scrolling one.
import { forwardRef } from 'react';

const Scrollbars = forwardRef(({ children, style }, ref) => (
  <div ref={ref} style={{ overflow: 'hidden', ...style }}>
    {children}
  </div>
));

export default Scrollbars;
export { Scrollbars };
